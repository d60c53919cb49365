"""A fuzzer of the whole broker with a store, against a model of its own."""

from tests.fuzz.broker.searching import search as search
