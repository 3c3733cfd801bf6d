#!/usr/bin/env python3
"""Checks reader.py against the conformance vectors beside it."""
import json
import os
import sys

from reader import Bad, read

def materialise(folder, vector):
    """A malformed file is a valid one with edits: [offset, hexadecimal bytes], then cut or extended to a length."""
    with open(os.path.join(folder, vector["base"]), "rb") as file:
        data = bytearray(file.read())
    for offset, text in vector["edits"]:
        data[offset : offset + len(text) // 2] = bytes.fromhex(text)
    length = vector.get("length", len(data))
    return bytes(data[:length]) + bytes(max(0, length - len(data)))


def check_vectors(folder):
    failed = total = 0
    for vector in json.load(open(os.path.join(folder, "valid.json"))):
        got = read(open(os.path.join(folder, vector["file"]), "rb").read())
        total, failed = total + 1, failed + (got != vector["expect"])
    for vector in json.load(open(os.path.join(folder, "malformed.json"))):
        try:
            read(materialise(folder, vector))
            got = "accepted"
        except Bad as bad:
            got = str(bad)
        if got != vector["code"]:
            print(f"{vector['name']}: {got}, not {vector['code']}")
            failed += 1
        total += 1
    print(f"{total - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if check_vectors(os.path.dirname(os.path.abspath(__file__))) else 0)
