"""What a new price or time sets off: fills of resting orders, liquidations, settlements, guardians.

Start with `matching`.
"""
