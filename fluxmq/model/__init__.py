"""Vocabulary shared by all packages: the root of the error tree, and the fixed limits.

It imports only ``_hot`` of our packages, and knows no protocol's rules, only the numbers they fix.
"""
