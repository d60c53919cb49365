"""Kept bytes: taken in any portions they are what was put in, and shared pieces count once."""

from __future__ import annotations

import random

from sessions.messages.kept_bytes import KeptBytes, SharedPieces


def test_any_pieces_in_any_portions() -> None:
    rng = random.Random(5)
    for _ in range(200):
        shared = SharedPieces()
        kept = KeptBytes(shared)
        put = taken = b""
        while len(put) < 200_000 and (rng.random() < 0.95 or len(kept)):
            if rng.random() < 0.5:
                pieces = [
                    bytes([rng.randrange(256)]) * rng.choice((0, 1, 20, 4_095, 4_096, 30_000))
                    for _ in range(rng.randrange(5))
                ]
                put += b"".join(pieces)
                kept.add(pieces)
            else:
                taken += kept.take(rng.choice((1, 19, 4_096, 100_000)))
            assert kept.bytes == len(put) - len(taken)
            assert (kept.bytes > 0) is (len(kept) > 0)
            assert shared.bytes >= kept.bytes
        taken += kept.take(1 << 62)
        assert taken == put
        assert (shared.bytes, len(shared), len(kept), kept.bytes) == (0, 0, 0, 0)


def test_a_piece_counts_once_however_often_it_is_kept() -> None:
    shared = SharedPieces()
    piece = bytes(5_000)
    keepers = [KeptBytes(shared) for _ in range(3)]
    for kept in keepers:
        kept.add([piece, piece])
    assert shared.bytes == 5_000 and [kept.bytes for kept in keepers] == [10_000] * 3
    assert keepers[0].take(7_000) == bytes(7_000)
    keepers[0].drop()
    keepers[1].drop()
    assert shared.bytes == 5_000 and len(shared) == 1
    keepers[2].take(5_000)
    assert shared.bytes == 5_000
    keepers[2].take(5_000)
    assert shared.bytes == 0 and len(shared) == 0


def test_empty_pieces_are_nothing() -> None:
    kept = KeptBytes(SharedPieces())
    kept.add([b"", b""])
    assert kept.take(10) == b"" and kept.bytes == 0
