"""The account at an exchange that this service follows: the link's reports become commands of the log.

`follower` holds the sessions with the link, and `report_commands` says which commands a report needs. Nothing else
changes the books of the account, so a replay of the log gives them again.

`action_sending` sends one action until its end is known. No command makes one yet.
"""
