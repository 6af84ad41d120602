//! Facts in files.

use super::{Basis, Fact, ProcessorKind};
use crate::entry::{At, Entry, FACT, join, plain_words, push_line, quoted};
use crate::error::MachineError;
use crate::quantity::Quantity;
use toml::Value;

plain_words!(ProcessorKind, Basis);

impl<T: Quantity> Entry for Fact<T> {
    fn read(at: &At<'_>) -> Result<Self, MachineError> {
        let table = at.table(FACT)?;
        let basis: Option<Basis> = table.entry("basis")?;
        let value = table.get("value");
        let value = value.ok_or_else(|| at.missing("value"))?;
        if basis.is_none() && T::NEEDS_BASIS {
            let names = Basis::ALL.map(|basis| format!("\"{}\"", basis.name()));
            let expected = format!("one of {}", names.join(", "));
            let key = join(&at.key, "basis");
            return Err(at.file.bad(&key, value.offset(), "missing", expected));
        }
        Ok(Self {
            value: value.quantity(&at.key, T::read)?,
            basis: basis.unwrap_or(Basis::Stated),
            source: table.entry("source")?,
        })
    }

    fn write_line(&self, key: &str, text: &mut String) {
        let (value, source) = (self.value.write(), quoted(&self.source));
        // The basis that is assumed when none is given stays unsaid, except for shares, which need one.
        let is_unsaid = self.basis == Basis::Stated && !matches!(value, Value::Float(_));
        let basis = match self.basis.name() {
            _ if is_unsaid => String::new(),
            basis => format!("basis = \"{basis}\", "),
        };
        push_line(
            text,
            format_args!("{key} = {{ value = {value}, {basis}source = {source} }}"),
        );
    }
}
