"""Vocabulary shared by all packages: the root of the error tree, the fixed limits, and formats.

It imports none of our packages, and knows no protocol's rules, only the numbers they fix.
"""
