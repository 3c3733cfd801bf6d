//! The `.smolmachine` container format: reader, writer, verifier. FORMAT.md is normative.
