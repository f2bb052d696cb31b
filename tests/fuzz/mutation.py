"""Broken bytes out of good ones, the same for the same seed.

`explore` runs a target over mutations of its corpus; a target takes bytes and raises only when
something is wrong, so whatever it raises is a finding. Inputs that reach a new outcome (what the
target returns) join the corpus, which is the little guidance that needs no instrumentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from random import Random

Target = Callable[[bytes], Hashable]

INPUT_BYTES_MAX = 512
_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x0B, 0x23, 0x26, 0x2A)


def mutate(random: Random, data: bytes, other: bytes) -> bytes:
    """One to four changes: bytes, bits, pieces removed, doubled, swapped in from `other`."""
    made = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(made))
        size = random.randint(1, 6)
        change = random.randrange(7)
        if change == 0 and at < len(made):
            made[at] ^= 1 << random.randrange(8)
        elif change == 1 and at < len(made):
            made[at] = random.choice(_EDGES)
        elif change == 2:
            made[at:at] = random.randbytes(size)
        elif change == 3:
            del made[at : at + size]
        elif change == 4:
            made[at:at] = made[at : at + size]
        elif change == 5:
            start = random.randint(0, len(other))
            made[at : at + size] = other[start : start + size]
        elif at + 1 < len(made):
            number = int.from_bytes(made[at : at + 2], "big") + random.choice((-1, 1, 256, -256))
            made[at : at + 2] = (number & 0xFFFF).to_bytes(2, "big")
    return bytes(made[:INPUT_BYTES_MAX])


def explore(target: Target, corpus: Sequence[bytes], seed: int, rounds: int) -> Counter[Hashable]:
    """Run `target` over `corpus` and `rounds` mutations; gives how often each outcome came.

    Raises `AssertionError` naming the input when the target raises.
    """
    random = Random(seed)
    known = list(corpus)
    outcomes: Counter[Hashable] = Counter()
    for number in range(len(corpus) + rounds):
        data = (
            corpus[number]
            if number < len(corpus)
            else mutate(random, random.choice(known), random.choice(known))
        )
        try:
            outcome = target(data)
        except Exception as error:
            raise AssertionError(f"{error!r} from {data.hex()!r} (seed {seed})") from error
        outcomes[outcome] += 1
        if outcomes[outcome] == 1 and number >= len(corpus):
            known.append(data)
    return outcomes
