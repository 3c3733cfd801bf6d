#!/usr/bin/env python3
"""Makes malformed.json: each vector breaks one field of a valid file and mends the digests above it.

Run by `SMOLPACK_REGENERATE=1 cargo test -p smolpack-format --test vectors`, after the valid files.
"""
import hashlib
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
vectors = []


def sha(data):
    return hashlib.sha256(data).digest()


class File:
    """A valid file under the knife."""

    def __init__(self, base):
        self.base = base
        self.original = open(os.path.join(HERE, base), "rb").read()
        self.data = bytearray(self.original)
        self.length = None
        self.manifest = struct.unpack_from("<2Q", self.data, 48)
        self.index = struct.unpack_from("<2Q", self.data, 96)

    def put(self, at, fmt, *values):
        struct.pack_into("<" + fmt, self.data, at, *values)

    def entry(self, position, field, fmt, *values):
        self.put(self.index[0] + 128 * position + field, fmt, *values)

    def table(self, position, which):
        """Place of a section's content (32) or placement (48) table."""
        return struct.unpack_from("<Q", self.data, self.index[0] + 128 * position + which)[0]

    def part(self, extent):
        return bytes(self.data[extent[0] : extent[0] + extent[1]])

    def swap_manifest(self, old, new):
        """Replaces text in the manifest by text of the same length."""
        assert len(old) == len(new), (old, new)
        at = self.data.index(old, self.manifest[0], sum(self.manifest))
        self.data[at : at + len(new)] = new

    def mend_tables(self):
        for at in range(self.index[0], sum(self.index), 128):
            content, chunks, placement, stored = struct.unpack_from("<4Q", self.data, at + 32)
            old = bytes(self.data[at + 64 : at + 96])
            new = sha(self.data[content : content + 48 * chunks])
            if old != new and old.hex().encode() in self.part(self.manifest):
                self.swap_manifest(old.hex().encode(), new.hex().encode())
            self.data[at + 64 : at + 96] = new
            self.data[at + 96 : at + 128] = sha(self.data[placement : placement + 8 * stored])
        self.mend_parts()

    def mend_parts(self):
        self.data[64:96] = sha(self.part(self.manifest))
        self.data[112:144] = sha(self.part(self.index))
        self.mend_header()

    def mend_header(self):
        self.data[4064:4096] = sha(self.data[:4064])
        self.data[-64 + 16 : -64 + 48] = self.data[4064:4096]


def vector(name, code, base="machine.smolmachine", mend=None, length=None):
    """Registers what the decorated function does to a file."""

    def register(change):
        file = File(base)
        change(file)
        if mend:
            getattr(file, "mend_" + mend)()
        edits, at = [], 0
        while at < len(file.data):
            if file.data[at] == file.original[at]:
                at += 1
                continue
            end = at
            while end < len(file.data) and file.data[end : end + 4] != file.original[end : end + 4]:
                end += 1
            edits.append([at, bytes(file.data[at:end]).hex()])
            at = end
        row = {"name": name, "code": code, "base": base, "edits": edits}
        if length is not None:
            row["length"] = length if length >= 0 else len(file.data) + length
        vectors.append(row)
        return change

    return register


def simple(name, code, at, fmt, *values, mend=None, base="machine.smolmachine"):
    vector(name, code, base, mend)(lambda f: f.put(at, fmt, *values))


def in_entry(name, code, position, field, fmt, *values, mend="parts"):
    vector(name, code, mend=mend)(lambda f: f.entry(position, field, fmt, *values))


def in_table(name, code, position, which, at, fmt, *values, base="machine.smolmachine"):
    vector(name, code, base, "tables")(lambda f: f.put(f.table(position, which) + at, fmt, *values))


# Sections of machine.smolmachine: 0 kernel, 1 disk, 2 memory, 3 overlay, 4 attachment. The disk's chunks: data, zero, data.
KERNEL, DISK, MEMORY, OVERLAY, NOTE = range(5)
CONTENT, PLACEMENT = 32, 48
HUGE = 1 << 63

# Finding the container.
@vector("header and footer magic", "not-smolmachine")
def no_magic(f):
    f.put(0, "B", 0x88)
    f.put(len(f.data) - 64, "B", 0x88)


simple("header magic, footer whole", "footer-mismatch", 0, "B", 0x88)
for cut in (0, 1, 7, 8, 63, 4095):
    code = "truncated" if cut >= 8 else "not-smolmachine"
    vector(f"cut to {cut} bytes", code, length=cut)(lambda f: None)
for cut in (-1, -64, -65, -4096, -8192):
    vector(f"cut by {-cut} bytes", "truncated", length=cut)(lambda f: None)
size = len(File("machine.smolmachine").data)
vector("one byte after the end", "trailing-data", length=size + 1)(lambda f: None)
vector("footer magic", "footer-mismatch")(lambda f: f.put(size - 64, "B", 0))
vector("footer length", "footer-mismatch")(lambda f: f.put(size - 56, "Q", 1))
vector("footer checksum", "footer-mismatch")(lambda f: f.put(size - 48, "B", f.data[size - 48] ^ 1))
vector("footer reserved", "reserved-not-zero")(lambda f: f.put(size - 1, "B", 1))
prefixed = len(File("prefixed.smolmachine").data)
vector("prefix: footer length beyond the file", "truncated", "prefixed.smolmachine")(lambda f: f.put(prefixed - 56, "Q", prefixed + 4096))
vector("prefix: footer length unaligned", "misaligned", "prefixed.smolmachine")(lambda f: f.put(prefixed - 56, "Q", prefixed - 4097))
vector("prefix: footer leads elsewhere", "footer-mismatch", "prefixed.smolmachine")(lambda f: f.put(prefixed - 56, "Q", prefixed - 8192))


@vector("a file of smolvm", "smolvm-file")
def smolvm(f):
    f.put(0, "8s", b"\x7fELF\2\1\1\0")
    f.put(size - 64, "8s", b"SMOLPACK")


# Header.
simple("header checksum", "header-checksum", 4064, "Q", 1)
simple("any bit of the header", "header-checksum", 200, "B", 1)
simple("major version 0", "unsupported-version", 8, "H", 0, mend="header")
simple("major version 2", "unsupported-version", 8, "H", 2, mend="header")
simple("unknown incompatible feature", "unsupported-feature", 16, "Q", 2, mend="header")
simple("incompatible feature bit 63", "unsupported-feature", 16, "Q", HUGE, mend="header")
simple("reserved byte of the header", "reserved-not-zero", 144, "B", 1, mend="header")
simple("last reserved byte of the header", "reserved-not-zero", 4063, "B", 1, mend="header")
simple("length over 2^62", "limit-exceeded", 40, "Q", (1 << 62) + 1, mend="header")
simple("length larger than the file", "truncated", 40, "Q", size + 4096, mend="header")
simple("length smaller than the file", "trailing-data", 40, "Q", size - 4096, mend="header")
simple("manifest of terabytes", "out-of-bounds", 56, "Q", 1 << 42, mend="header")
simple("manifest beyond the end", "out-of-bounds", 48, "Q", size, mend="header")
simple("manifest offset that overflows", "out-of-bounds", 48, "Q", (1 << 64) - 8, mend="header")
simple("index of terabytes", "limit-exceeded", 104, "Q", 1 << 42, mend="header")
simple("index beyond the end", "out-of-bounds", 96, "Q", size - 100, mend="header")
simple("index digest", "index-digest", 112, "B", 0, mend="header")
simple("manifest digest", "manifest-digest", 64, "Q", 1, mend="header")


@vector("index of half an entry", "misaligned", mend="header")
def half_index(f):
    f.put(104, "Q", 64)
    f.data[112:144] = sha(f.data[f.index[0] : f.index[0] + 64])


# Index.
in_entry("unknown alignment", "limit-exceeded", DISK, 4, "B", 22)
in_entry("alignment below a block", "limit-exceeded", DISK, 4, "B", 11)
in_entry("reserved byte of an entry", "reserved-not-zero", DISK, 5, "B", 1)
in_entry("section length over 2^62", "limit-exceeded", DISK, 8, "Q", HUGE)
in_entry("data unaligned", "misaligned", DISK, 16, "Q", 4097)
in_entry("data length unaligned", "misaligned", DISK, 24, "Q", 100)
in_entry("data beyond the end", "out-of-bounds", DISK, 16, "Q", 1 << 40)
in_entry("data offset that overflows", "out-of-bounds", DISK, 16, "Q", (1 << 64) - 4096)
in_entry("data over the header", "overlap", DISK, 16, "Q", 0)
in_entry("tables of two sections in one place", "overlap", DISK, 32, "Q", File("machine.smolmachine").table(KERNEL, CONTENT))
in_entry("content table unaligned", "misaligned", DISK, 32, "Q", 4100)
in_entry("placement table unaligned", "misaligned", DISK, 48, "Q", 4100)
in_entry("too many chunks", "limit-exceeded", DISK, 40, "Q", 1 << 40)
in_entry("more stored chunks than chunks", "index-entry", DISK, 56, "Q", 100)
in_entry("a length without chunks", "index-entry", DISK, 40, "QQQ", 0, 0, 0)
in_entry("data without stored chunks", "index-entry", DISK, 48, "QQ", 0, 0)
in_entry("an empty section with a place", "index-entry", NOTE, 8, "Q", 0)
in_entry("a kind that occurs twice", "duplicate-section", DISK, 0, "I", 1)
in_entry("a kind the manifest does not have", "section-mismatch", NOTE, 0, "I", 99)
in_entry("content table digest", "section-mismatch", DISK, 64, "Q", 1)
in_entry("placement table digest", "placement-digest", DISK, 96, "Q", 1)

# Manifest.


def manifest(name, code, old, new):
    vector(name, code, mend="parts")(lambda f: f.swap_manifest(old, new))


manifest("manifest that is no JSON", "manifest-syntax", b'{"cpus"', b'["cpus"')
manifest("manifest that is no UTF-8", "manifest-syntax", b'"amd64"', b'"amd6\xff"')
manifest("manifest with white space", "manifest-not-canonical", b'"cpus":12', b'"cpus": 2')
manifest("manifest with a negative number", "manifest-not-canonical", b'"cpus":12', b'"cpus":-2')
manifest("manifest of the wrong type", "manifest-invalid", b'"cpus":12', b'"cpus":""')
manifest("list where a word belongs", "manifest-invalid", b'"os":"linux"', b'"os":["lin"]')
manifest("unknown kind of container", "manifest-invalid", b'"kind":"machine"', b'"kind":"machina"')
manifest("section of another length", "section-mismatch", b'"length":32768', b'"length":32769')
manifest("section of another kind", "section-mismatch", b'"kind":"disk"', b'"kind":"risk"')
manifest("a key missing", "manifest-invalid", b'"memory_mib"', b'"memory_mid"')
vector("checkpoint without a parent", "manifest-invalid", "checkpoint.smolcheckpoint", "parts")(
    lambda f: f.swap_manifest(b'"parent"', b'"parenu"')
)

# Chunks.
vector("content table changed", "content-digest")(lambda f: f.put(f.table(DISK, CONTENT) + 20, "B", f.data[f.table(DISK, CONTENT) + 20] ^ 1))
vector("placement table changed", "placement-digest")(lambda f: f.put(f.table(DISK, PLACEMENT), "B", 1))
in_table("unknown class", "chunk-kind", DISK, CONTENT, 48, "I", 3)
in_table("reserved of a chunk", "reserved-not-zero", DISK, CONTENT, 4, "I", 1)
in_table("an empty chunk", "chunk-length", DISK, CONTENT, 8, "Q", 0)
in_table("a chunk of terabytes", "chunk-length", DISK, CONTENT, 8, "Q", 1 << 42)
in_table("a chunk whose end overflows", "chunk-length", DISK, CONTENT, 8, "Q", (1 << 64) - 4096)
in_table("a chunk of a part of a block", "chunk-length", DISK, CONTENT, 8, "Q", 100)
in_table("a zero chunk with a digest", "reserved-not-zero", DISK, CONTENT, 48 + 16, "Q", 1)
in_table("a parent chunk in a disk", "parent-not-allowed", DISK, CONTENT, 48, "I", 2)
in_table("chunks that end too early", "chunk-length", DISK, CONTENT, 48 + 8, "Q", 4096)
in_table("data without a placement", "chunk-placement", OVERLAY, CONTENT, 96, "I", 1)
in_table("a placement without data", "chunk-placement", DISK, CONTENT, 0, "IIQ4Q", 0, 0, 8192, 0, 0, 0, 0)
in_table("unknown encoding", "chunk-kind", DISK, PLACEMENT, 0, "I", 2)
in_table("zstd that is not announced", "feature-missing", DISK, PLACEMENT, 0, "II", 1, 100)
in_table("raw data of another length", "chunk-length", DISK, PLACEMENT, 4, "I", 4096)
vector("a data chunk over the limit", "limit-exceeded", "large.smolmachine", "tables")(lambda f: f.put(f.table(0, CONTENT), "I", 1))
vector("a flipped bit of data", "chunk-digest")(lambda f: f.put(struct.unpack_from("<Q", f.data, f.index[0] + 128 * DISK + 16)[0] + 5, "B", 0xA5))
vector("a flipped bit of memory", "chunk-digest")(lambda f: f.put(struct.unpack_from("<Q", f.data, f.index[0] + 128 * MEMORY + 16)[0], "B", 0xA5))


@vector("a byte between parts", "gap-not-zero")
def gap(f):
    parts = [(0, 4096), f.index, f.manifest]
    for at in range(f.index[0], sum(f.index), 128):
        data, length, content, chunks, placement, stored = struct.unpack_from("<6Q", f.data, at + 16)
        parts += [(data, length), (content, 48 * chunks), (placement, 8 * stored)]
    parts = sorted(part for part in parts if part[1])
    end = next(a + size for (a, size), (b, _) in zip(parts, parts[1:]) if b > a + size)
    f.put(end, "B", 1)



vector("padding after the last chunk", "gap-not-zero")(
    lambda f: f.put(sum(struct.unpack_from("<2Q", f.data, f.index[0] + 128 * NOTE + 16)) - 1, "B", 1)
)

# zstd.
in_table("zstd chunk with nothing stored", "chunk-length", 0, PLACEMENT, 4, "I", 0, base="zstd.smolmachine")
in_table("zstd chunk longer than its data", "chunk-length", 0, PLACEMENT, 4, "I", 1 << 24, base="zstd.smolmachine")


def frame(f):
    return struct.unpack_from("<Q", f.data, f.index[0] + 16)[0]


vector("a zstd frame that is none", "decompress", "zstd.smolmachine")(lambda f: f.put(frame(f), "I", 0))
vector("a damaged zstd frame", "decompress", "zstd.smolmachine")(lambda f: f.put(frame(f) + 4, "I", 0xFFFFFFFF))


@vector("a decompression bomb", "decompress", "zstd.smolmachine", "tables")
def bomb(f):
    """The frame gives far more than the one block that its chunk claims."""
    f.put(f.table(0, CONTENT) + 8, "Q", 4096)
    f.entry(0, 8, "Q", 4096)
    f.swap_manifest(b'"length":8192', b'"length":4096')


with open(os.path.join(HERE, "malformed.json"), "w") as out:
    rows = ",\n".join(json.dumps(row) for row in vectors)
    out.write(f"[\n{rows}\n]\n")
print(f"{len(vectors)} malformed vectors")
