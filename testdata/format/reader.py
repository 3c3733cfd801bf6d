#!/usr/bin/env python3
"""Reads and verifies .smolmachine files; written from FORMAT.md alone, with the standard library alone.

zstd chunks are decoded by the program `zstd`, as the standard library has no such codec.
"""
import hashlib
import json
import re
import struct
import subprocess
import sys

HEADER_MAGIC = b"\x89SMOL\r\n\x1a"
FOOTER_MAGIC = b"\x89SMOLEND"
KINDS = {1: "kernel", 2: "initrd", 3: "disk", 4: "vm-state", 5: "memory", 6: "working-set", 7: "overlay", 8: "attachment"}
BLOCK, MIB, NONE = 4096, 1 << 20, bytes(32)


class Bad(Exception):
    """A file that breaks the format; its text is the error code."""


def need(condition, code):
    if not condition:
        raise Bad(code)


def sha(data):
    return hashlib.sha256(data).digest()


def locate(data):
    """Section 2: the container's bytes, and its header's fields."""
    footer = data[-64:] if len(data) >= 64 and data[-64:-56] == FOOTER_MAGIC else None
    if footer is not None:
        need(not any(footer[48:]), "reserved-not-zero")
    base = 0
    if data[:8] != HEADER_MAGIC:
        if footer is None:
            raise Bad("smolvm-file" if b"SMOLPACK" in data[-4096:] else "not-smolmachine")
        base = len(data) - struct.unpack_from("<Q", footer, 8)[0]
        need(base >= 0, "truncated")
        need(base % BLOCK == 0, "misaligned")
    data = data[base:]
    need(len(data) >= 4096, "truncated")
    need(data[:8] == HEADER_MAGIC, "footer-mismatch")
    header = parse_header(data[:4096])
    need(len(data) >= header["length"], "truncated")
    need(len(data) <= header["length"], "trailing-data")
    need(footer is not None, "footer-mismatch")
    need(struct.unpack_from("<Q", footer, 8)[0] == header["length"], "footer-mismatch")
    need(footer[16:48] == data[4064:4096], "footer-mismatch")
    return data, header


def parse_header(raw):
    """Section 3."""
    need(sha(raw[:4064]) == raw[4064:], "header-checksum")
    major, minor = struct.unpack_from("<HH", raw, 8)
    need(major == 1, "unsupported-version")
    incompatible, _, _, length, *places = struct.unpack_from("<6Q", raw, 16)
    need(incompatible & ~1 == 0, "unsupported-feature")
    need(minor > 0 or not any(raw[144:4064]), "reserved-not-zero")
    need(length <= 1 << 62, "limit-exceeded")
    return {
        "zstd": incompatible & 1,
        "length": length,
        "manifest": tuple(places),
        "manifest_digest": raw[64:96],
        "index": struct.unpack_from("<2Q", raw, 96),
        "index_digest": raw[112:144],
    }


def load(data, header, name, limit):
    offset, length = header[name]
    need(length <= limit, "limit-exceeded")
    need(offset + length <= header["length"], "out-of-bounds")
    part = data[offset : offset + length]
    need(sha(part) == header[name + "_digest"], name + "-digest")
    return part


def parse_index(raw):
    """Section 5."""
    need(len(raw) % 128 == 0, "misaligned")
    entries = []
    for at in range(0, len(raw), 128):
        kind, align = struct.unpack_from("<IB", raw, at)
        length, data_at, data_len, content_at, chunks, placement_at, stored = struct.unpack_from("<7Q", raw, at + 8)
        need(not any(raw[at + 5 : at + 8]), "reserved-not-zero")
        need(chunks <= 1 << 22, "limit-exceeded")
        need(stored <= chunks, "index-entry")
        need(12 <= align <= 21, "limit-exceeded")
        need(data_at % (1 << align) == 0 and data_len % BLOCK == 0, "misaligned")
        need(content_at % 8 == 0 and placement_at % 8 == 0, "misaligned")
        need(length <= 1 << 62, "limit-exceeded")
        need((length == 0) == (chunks == 0) and (data_len == 0) == (stored == 0), "index-entry")
        parts = [(data_at, data_len), (content_at, chunks * 48), (placement_at, stored * 8)]
        need(all(size or place == 0 for place, size in parts), "index-entry")
        need(kind not in range(1, 8) or all(e["kind"] != kind for e in entries), "duplicate-section")
        entries.append({"kind": kind, "length": length, "parts": parts, "digests": (raw[at + 64 : at + 96], raw[at + 96 : at + 128])})
    return entries


def arrange(header, entries):
    """Section 6: the parts in order."""
    length = header["length"]
    parts = [(0, 4096), header["index"], header["manifest"], (max(length - 64, 0), 64)]
    parts += [part for entry in entries for part in entry["parts"]]
    need(all(place + size <= length for place, size in parts), "out-of-bounds")
    parts = sorted(part for part in parts if part[1])
    for (a, size), (b, _) in zip(parts, parts[1:]):
        need(a + size <= b, "overlap")
        need(b - a - size < 2 * MIB, "gap-too-long")
    return parts


def canonical(value, depth=64):
    """Section 8: the one spelling of a value."""
    need(depth > 0 and value is not None and not isinstance(value, float), "manifest-not-canonical")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        need(0 <= value < 1 << 53, "manifest-not-canonical")
        return str(value)
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return re.sub("\\\\u00([0-9a-fA-F]{2})", lambda m: m[0].lower(), text)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item, depth - 1) for item in value) + "]"
    keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
    return "{" + ",".join(canonical(key) + ":" + canonical(value[key], depth - 1) for key in keys) + "}"


def parse_manifest(raw):
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Bad("manifest-syntax") from None
    need(canonical(value).encode() == raw, "manifest-not-canonical")
    good = isinstance(value, dict) and value.get("kind") in ("machine", "checkpoint")
    good = good and all(type(value.get(key)) is int for key in ("cpus", "memory_mib", "disk_bytes"))
    platform = value.get("platform") if good else None
    good = good and isinstance(platform, dict) and all(isinstance(platform.get(k), str) for k in ("os", "architecture"))
    for key in ("entrypoint", "cmd", "env"):
        items = value.get(key, []) if good else []
        good = good and isinstance(items, list) and all(isinstance(item, str) for item in items)
    good = good and ("parent" in value) == (value["kind"] == "checkpoint")
    need(good and isinstance(value.get("sections", []), list), "manifest-invalid")
    return value


def join(entries, manifest):
    sections = manifest.get("sections", [])
    need(len(entries) == len(sections), "section-mismatch")
    for entry, summary in zip(entries, sections):
        name = KINDS.get(entry["kind"])
        same = summary["kind"] == name if name else summary["kind"] not in KINDS.values()
        digest = "sha256:" + entry["digests"][0].hex()
        need(same and summary["length"] == entry["length"] and summary["digest"] == digest, "section-mismatch")
    length = {entry["kind"]: entry["length"] for entry in entries}
    need(3 not in length or length.get(7, length[3]) == length[3], "section-mismatch")


def chunks(data, header, entry, checkpoint):
    """Section 7: (class, length, digest, offset, stored, encoding) of each chunk, and where the data ends."""
    (data_at, data_len), (content_at, size), (placement_at, placed) = entry["parts"]
    content, placement = data[content_at : content_at + size], data[placement_at : placement_at + placed]
    need(sha(content) == entry["digests"][0], "content-digest")
    need(sha(placement) == entry["digests"][1], "placement-digest")
    found, logical, end, used = [], 0, data_at, 0
    for at in range(0, size, 48):
        kind, zero, length = struct.unpack_from("<IIQ", content, at)
        digest = content[at + 16 : at + 48]
        need(zero == 0, "reserved-not-zero")
        rest = entry["length"] - logical
        need(0 < length <= rest and (length == rest or length % BLOCK == 0), "chunk-length")
        need(kind == 1 or digest == NONE, "reserved-not-zero")
        need(kind in (0, 1, 2), "chunk-kind")
        need(kind != 2 or checkpoint or entry["kind"] == 7, "parent-not-allowed")
        offset = stored = encoding = None
        if kind == 1:
            need(length <= 4 * MIB, "limit-exceeded")
            need(used < placed, "chunk-placement")
            encoding, stored = struct.unpack_from("<II", placement, used)
            used += 8
            need(encoding in (0, 1), "chunk-kind")
            need(encoding == 0 or header["zstd"], "feature-missing")
            need(stored == length if encoding == 0 else 0 < stored < length, "chunk-length")
            offset = -(-end // BLOCK) * BLOCK if encoding == 0 else end
            end = offset + stored
        found.append((kind, length, digest, offset, stored, encoding))
        logical += length
    need(logical == entry["length"], "chunk-length")
    need(used == placed and -(-end // BLOCK) * BLOCK == data_at + data_len, "chunk-placement")
    return found


def verify_data(data, entry, found):
    end = entry["parts"][0][0]
    for kind, length, digest, offset, stored, encoding in found:
        if kind != 1:
            continue
        need(not any(data[end:offset]), "gap-not-zero")
        raw = data[offset : offset + stored]
        if encoding == 1:
            raw = unzstd(raw, length)
        need(sha(raw) == digest, "chunk-digest")
        end = offset + stored
    need(not any(data[end : sum(entry["parts"][0])]), "gap-not-zero")


def unzstd(frame, length):
    """One frame that decodes to exactly `length` bytes; `head` keeps a bomb from filling memory."""
    command = f"zstd -dcq --no-check 2>/dev/null | head -c {length + 1}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], input=frame, capture_output=True)
    need(done.returncode == 0 and len(done.stdout) == length, "decompress")
    return done.stdout


def read(data):
    """What the file holds; raises Bad."""
    data, header = locate(data)
    entries = parse_index(load(data, header, "index", 256 * 128))
    parts = arrange(header, entries)
    raw = load(data, header, "manifest", 4 * MIB)
    manifest = parse_manifest(raw)
    join(entries, manifest)
    for (a, size), (b, _) in zip(parts, parts[1:]):
        need(not any(data[a + size : b]), "gap-not-zero")
    for entry in entries:
        found = chunks(data, header, entry, manifest["kind"] == "checkpoint")
        verify_data(data, entry, found)
        entry["chunks"] = len(found)
    return {
        "digest": "sha256:" + sha(raw).hex(),
        "kind": manifest["kind"],
        "sections": [
            {"kind": s["kind"], "length": e["length"], "chunks": e["chunks"], "digest": s["digest"]}
            for e, s in zip(entries, manifest.get("sections", []))
        ],
    }


if __name__ == "__main__":
    try:
        print(json.dumps(read(open(sys.argv[1], "rb").read()), indent=1))
    except Bad as bad:
        sys.exit(str(bad))
