"""The account at an exchange that this service follows: reports become commands, and committed actions are sent.

`follower` holds the sessions with the link, and `report_commands` says which commands a report needs. Nothing else
changes the books of the account, so a replay of the log gives them again.

`action_dispatcher` sends the actions of the state after their commit, and `action_sending` makes one call of the link
for one of them. What is heard is a command too.
"""
