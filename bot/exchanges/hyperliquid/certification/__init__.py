"""Shows with a real account which assumptions about the exchange are right.

`assumptions` lists them, and `contract` has the scenarios that show them, in the modules beside it. `session` sends the
actions of a scenario and reads what came of them, `run` runs them one after the other and cleans up, and `report` says
what was seen. The tests of the local exchange run the same scenarios.
"""
