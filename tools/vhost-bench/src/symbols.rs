// SPDX-License-Identifier: GPL-2.0

//! `/proc/kallsyms`: what stands at an address of the kernel.

use anyhow::{ensure, Context, Result};

/// A function of the kernel or of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Where it starts.
    pub address: u64,
    /// Its name, as the kernel has it.
    pub name: String,
    /// The module that it belongs to, if it does to one.
    pub module: Option<String>,
}

impl Symbol {
    /// A name for people.
    pub fn readable(&self) -> String {
        let name = format!("{:#}", rustc_demangle::demangle(&self.name));
        name.replace("vhost_net_rs::", "")
    }
}

/// All functions, sorted by address.
#[derive(Clone, Debug, Default)]
pub struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Takes the lines of `/proc/kallsyms` that are about code.
    ///
    /// # Errors
    ///
    /// A line that is no symbol. No symbol at all, or addresses that the kernel hides.
    pub fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Self> {
        let mut symbols = Vec::new();
        for line in lines {
            symbols.push(parse(line).with_context(|| format!("not a symbol: `{line}`"))?);
        }
        ensure!(
            symbols.iter().any(|symbol| symbol.address != 0),
            "/proc/kallsyms has no addresses: it must be read as root"
        );
        symbols.sort_by_key(|symbol| symbol.address);
        Ok(Self(symbols))
    }

    /// What an address belongs to.
    pub fn find(&self, address: u64) -> Option<&Symbol> {
        let after = self.0.partition_point(|symbol| symbol.address <= address);
        self.0.get(after.checked_sub(1)?)
    }
}

fn parse(line: &str) -> Option<Symbol> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let _kind = words.next()?;
    let name = words.next()?.to_owned();
    let module = words
        .next()
        .map(|module| module.trim_matches(['[', ']']).to_owned());
    Some(Symbol {
        address,
        name,
        module,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_belongs_to_the_symbol_before_it() {
        let lines = ["ffffffffc0000010 t two\t[tun]", "ffffffff81000000 T one"];
        let symbols = Symbols::parse(lines.into_iter()).unwrap();
        let name = |address| symbols.find(address).map(|symbol| symbol.name.as_str());
        assert_eq!(name(0xffff_ffff_8000_0000), None);
        assert_eq!(name(0xffff_ffff_8100_0000), Some("one"));
        assert_eq!(name(0xffff_ffff_c000_0011), Some("two"));
        let module = symbols.find(u64::MAX).unwrap().module.clone();
        assert_eq!(module.as_deref(), Some("tun"));
    }

    #[test]
    fn hidden_addresses_are_an_error() {
        assert!(Symbols::parse(["0000000000000000 T one"].into_iter()).is_err());
        assert!(Symbols::parse(["no address"].into_iter()).is_err());
    }
}
