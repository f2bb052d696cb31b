"""The vocabulary every other package shares: the root of the error tree and the fixed limits.

It imports nothing of ours but ``_hot`` and knows no protocol's rules, only the numbers they fix.
"""
