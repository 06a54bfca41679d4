"""What a pass is made of: the port to the service, bars, the budget of calls, and when the next pass begins."""
