//! Sparse files: GNU's old form and PAX 0.0, 0.1 and 1.0 all become a list of stretches.

use super::header::number;
use super::pax::decimal;

/// A stretch of data: where in the file, and how long. In the archive stretches lie end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) at: u64,
    pub(super) len: u64,
}

/// The entries of an old GNU map: 12 bytes of offset and 12 of length each; a zero byte first ends it.
pub(super) fn gnu_map(raw: &[u8], out: &mut Vec<Stretch>) -> Result<(), &'static str> {
    for pair in raw.chunks_exact(24).take_while(|pair| pair[0] != 0) {
        let field = |bytes| number(bytes).and_then(|n| u64::try_from(n).ok());
        let (at, len) = field(&pair[..12]).zip(field(&pair[12..])).ok_or("its sparse map is malformed")?;
        out.push(Stretch { at, len });
    }
    Ok(())
}

/// The map of PAX 0.0 and 0.1: offsets and lengths by turns.
pub(super) fn pairs(numbers: &[u64]) -> Result<Vec<Stretch>, &'static str> {
    if !numbers.len().is_multiple_of(2) {
        return Err("its sparse map has an offset without a length");
    }
    Ok(numbers.chunks_exact(2).map(|pair| Stretch { at: pair[0], len: pair[1] }).collect())
}

/// Reads the map of PAX 1.0 out of decimal lines that come from `line`: a count, then the pairs.
pub(super) fn lines<E: From<&'static str>>(
    mut line: impl FnMut() -> Result<Vec<u8>, E>,
    most: u64,
) -> Result<Vec<Stretch>, E> {
    let mut value =
        || -> Result<u64, E> { decimal(&line()?).map_err(|_| "its sparse map is malformed".into()) };
    let count = value()?;
    if count > most {
        return Err("its sparse map is longer than allowed".into());
    }
    (0..count).map(|_| Ok(Stretch { at: value()?, len: value()? })).collect()
}

/// Checks a map against the file's size and the data that the archive holds; drops empty stretches.
pub(super) fn check(map: Vec<Stretch>, size: u64, stored: u64) -> Result<Vec<Stretch>, &'static str> {
    let (mut end, mut sum) = (0u64, 0u64);
    for stretch in &map {
        let next = stretch.at.checked_add(stretch.len).filter(|next| *next <= size);
        if stretch.at < end && stretch.len > 0 {
            return Err("its sparse map is not in order");
        }
        end = next.ok_or("its sparse map goes past the file's end")?.max(end);
        sum += stretch.len;
    }
    if sum != stored {
        return Err("its sparse map does not fit the data stored");
    }
    Ok(map.into_iter().filter(|stretch| stretch.len > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_refuses_maps_that_lie() {
        let s = |at, len| Stretch { at, len };
        assert_eq!(check(vec![s(0, 2), s(4, 2), s(8, 0)], 8, 4), Ok(vec![s(0, 2), s(4, 2)]));
        for (name, map, size, stored) in [
            ("overlap", vec![s(0, 4), s(2, 4)], 10, 8),
            ("past the end", vec![s(6, 4)], 8, 4),
            ("overflow", vec![s(u64::MAX, 2)], 8, 2),
            ("less stored", vec![s(0, 4)], 8, 3),
            ("backwards", vec![s(4, 2), s(0, 2)], 8, 4),
        ] {
            assert!(check(map, size, stored).is_err(), "{name}");
        }
    }
}
