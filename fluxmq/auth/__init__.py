"""Authentication and authorisation.

Pure: users' records, verification of passwords and SCRAM proofs, and topic permissions are
functions of their arguments. Randomness (salts, nonces) comes from the caller. Independent of where
users are stored, which protocol asks and on which thread a slow verification runs.
"""

from __future__ import annotations
