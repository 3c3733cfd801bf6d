//! Reads typed values out of a parsed TOML table, remembering where each one stands.
//!
//! A section asks its [`TableReader`] for every key it knows and then calls
//! [`TableReader::finish`]; what was never asked for is unknown. So the keys are named in one place
//! only, and a key that is read cannot be missing from the list of known ones. A value that
//! cannot be read is recorded and treated as absent, and reading goes on.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::nearest;
use super::report::{Diagnostics, Problem};
use super::values::{Text, ValueError};

/// No list of a Smolfile is as long; checks that compare items with each other count on it.
const LONGEST_LIST: usize = 4096;

/// A value and the key it was found under.
pub(super) struct Field<'a, 'i> {
    /// The key with the names of the tables around it, such as `dev.ports`.
    pub(super) path: String,
    pub(super) value: &'a Spanned<DeValue<'i>>,
}

impl Field<'_, '_> {
    /// Records that the value is of the wrong type.
    pub(super) fn mistyped(&self, expected: &str, out: &mut Diagnostics) {
        let found = type_name(self.value.get_ref());
        out.push(Problem::new(
            format!("`{}` has the wrong type", self.path),
            self.value.span(),
            format!("expected {expected}, found {found}"),
        ));
    }

    /// Records that the value was refused.
    pub(super) fn refused(&self, error: ValueError, out: &mut Diagnostics) {
        out.push(
            Problem::new(format!("invalid value for `{}`", self.path), self.value.span(), error.problem)
                .help(error.help),
        );
    }

    /// Keeps a checked value, or records why it was refused.
    pub(super) fn checked<T>(&self, result: Result<T, ValueError>, out: &mut Diagnostics) -> Option<T> {
        result.map_err(|error| self.refused(error, out)).ok()
    }

    /// The text of a string, or a record that it is none.
    pub(super) fn text(&self, expected: &str, out: &mut Diagnostics) -> Option<&str> {
        let text = self.value.get_ref().as_str();
        if text.is_none() {
            self.mistyped(expected, out);
        }
        text
    }
}

/// The value of an integer; `None` where even 128 bits do not hold it.
pub(super) fn integer(number: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// A type that can be read from the value of a key.
pub(super) trait Decode: Sized {
    /// `None` after a record in `out`.
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self>;
}

impl Decode for bool {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let value = field.value.get_ref().as_bool();
        if value.is_none() {
            field.mistyped("true or false", out);
        }
        value
    }
}

impl Decode for u32 {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let number = whole_number(field, "an integer", out)?;
        let checked = u32::try_from(number)
            .map_err(|_| ValueError::new(format!("{number} is not between 0 and {}", u32::MAX)));
        field.checked(checked, out)
    }
}

impl Decode for String {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let text = field.text("a string", out)?;
        if text.contains('\0') {
            field.refused(ValueError::new("a NUL character cannot be handed to a program"), out);
            return None;
        }
        Some(text.to_owned())
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let items = decode_items(field, out)?;
        Some(items.into_iter().map(|(item, _)| item).collect())
    }
}

/// A type's text from a string value.
pub(super) fn decode_text<T: Text>(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<T> {
    let parsed = field.text(T::EXPECTED, out)?.parse();
    field.checked(parsed, out)
}

/// An integer of any size that fits 128 bits.
pub(super) fn whole_number(field: &Field<'_, '_>, expected: &str, out: &mut Diagnostics) -> Option<i128> {
    let Some(number) = field.value.get_ref().as_integer() else {
        field.mistyped(expected, out);
        return None;
    };
    let number = integer(number);
    if number.is_none() {
        field.refused(ValueError::new("too large a number"), out);
    }
    number
}

/// The good items of an array with their places; the others are recorded.
pub(super) fn decode_items<T: Decode>(
    field: &Field<'_, '_>,
    out: &mut Diagnostics,
) -> Option<Vec<(T, Range<usize>)>> {
    let Some(array) = field.value.get_ref().as_array() else {
        field.mistyped("an array", out);
        return None;
    };
    if array.len() > LONGEST_LIST {
        field.refused(ValueError::new(format!("more than {LONGEST_LIST} items")), out);
        return None;
    }
    let mut items = Vec::with_capacity(array.len());
    for (index, value) in array.iter().enumerate() {
        let item = Field { path: format!("{}[{index}]", field.path), value };
        items.extend(T::decode(&item, out).map(|decoded| (decoded, value.span())));
    }
    Some(items)
}

/// Hands out the values of one table, and knows what was asked for.
pub(super) struct TableReader<'a, 'i, 'o> {
    /// Empty at the top, else the table's name.
    path: String,
    table: &'a DeTable<'i>,
    asked: Vec<&'static str>,
    pub(super) out: &'o mut Diagnostics,
}

impl<'a, 'i, 'o> TableReader<'a, 'i, 'o> {
    /// The file's own table.
    pub(super) fn top(table: &'a DeTable<'i>, out: &'o mut Diagnostics) -> Self {
        Self { path: String::new(), table, asked: Vec::new(), out }
    }

    /// The table that is a key's value.
    pub(super) fn open(field: &Field<'a, 'i>, out: &'o mut Diagnostics) -> Option<Self> {
        let Some(table) = field.value.get_ref().as_table() else {
            field.mistyped("a table", out);
            return None;
        };
        Some(Self { path: field.path.clone(), table, asked: Vec::new(), out })
    }

    /// A key of this table with the names around it.
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The raw value of a key, which thereby is a known one.
    pub(super) fn field(&mut self, key: &'static str) -> Option<Field<'a, 'i>> {
        self.asked.push(key);
        let value = self.table.get(key)?;
        Some(Field { path: self.path_of(key), value })
    }

    /// The value of a key; `None` where it is absent or wrong.
    pub(super) fn value<T: Decode>(&mut self, key: &'static str) -> Option<T> {
        let field = self.field(key)?;
        T::decode(&field, self.out)
    }

    /// The value of a key, or the type's default.
    pub(super) fn or_default<T: Decode + Default>(&mut self, key: &'static str) -> T {
        self.value(key).unwrap_or_default()
    }

    /// A list in which no two items may be the `same`; `why` says what they share.
    pub(super) fn distinct<T: Decode>(
        &mut self,
        key: &'static str,
        same: fn(&T, &T) -> bool,
        why: &str,
    ) -> Vec<T> {
        let Some(field) = self.field(key) else { return Vec::new() };
        let items: Vec<(T, _)> = decode_items(&field, self.out).unwrap_or_default();
        for (at, (item, span)) in items.iter().enumerate() {
            if let Some((_, first)) = items[..at].iter().find(|(earlier, _)| same(earlier, item)) {
                self.out.push(
                    Problem::new(format!("`{}` names {why} twice", field.path), span.clone(), "again here")
                        .related(first.clone(), "first here")
                        .help(Some("remove or change one of the two".to_owned())),
                );
            }
        }
        items.into_iter().map(|(item, _)| item).collect()
    }

    /// The text of a key that `T` checks; absent where it is absent or wrong.
    pub(super) fn text<T: Decode + Into<String>>(&mut self, key: &'static str) -> Option<String> {
        self.value::<T>(key).map(Into::into)
    }

    /// Where a key stands, if it is there.
    pub(super) fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    /// Records that two keys are there of which there can be one.
    pub(super) fn exclusive(&mut self, first: &str, second: &str, help: &str) {
        let (Some(one), Some(other)) = (self.key_span(first), self.key_span(second)) else { return };
        let (earlier, later) = if one.start < other.start { (one, other) } else { (other, one) };
        self.out.push(
            Problem::new(
                format!("`{}` and `{}` exclude each other", self.path_of(first), self.path_of(second)),
                later,
                "one of the two is enough",
            )
            .related(earlier, "the other is here")
            .help(Some(help.to_owned())),
        );
    }

    /// Hands out every key with its place and value, for tables whose keys are the user's own names.
    pub(super) fn for_each(self, mut read: impl FnMut(&str, Range<usize>, &Field<'a, 'i>, &mut Diagnostics)) {
        for (key, value) in self.table {
            let field = Field { path: self.path_of(key.get_ref()), value };
            read(key.get_ref(), key.span(), &field, self.out);
        }
    }

    /// Records every key nobody asked for, with the nearest known one.
    pub(super) fn finish(self) {
        for (key, _) in self.table {
            let name = key.get_ref();
            if self.asked.iter().all(|asked| asked != name) {
                let title = format!("unknown key `{}`", self.path_of(name));
                let (label, help) = nearest::explain_unknown(name, &self.path, &self.asked);
                self.out.push(Problem::new(title, key.span(), label).help(help));
            }
        }
    }
}
