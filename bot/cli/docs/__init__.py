"""`bot docs`, and how the documentation site is built: the pages of docs/, and reference pages that are generated from
the code.

Start with `builder`. `reference` generates the pages about the program, `service_reference` those about the HTTP
interface.
"""
