//! Which modules a machine needs, each behind what it depends on.
//!
//! The dependencies are read from the modules themselves (`depends=` in `.modinfo`, which modpost
//! wrote and `depmod` only copies): a package as Debian ships it has no `modules.dep`.

use std::collections::BTreeSet;

use super::drivers::{DRIVERS, Driver};
use super::elf;

/// Deeper chains of dependencies than any kernel's are taken for an attack.
const MAX_DEPTH: usize = 32;

/// A module and its uncompressed ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// With underscores, as `lsmod` prints it.
    pub(crate) name: String,
    pub(crate) data: Vec<u8>,
}

/// Where modules come from.
pub(crate) trait Modules {
    /// Whether the driver is part of the kernel image.
    fn is_built_in(&self, name: &str) -> bool;

    /// The module of that name, uncompressed; `None` where there is none.
    fn load(&self, name: &str) -> Result<Option<Vec<u8>>, ModuleFault>;
}

/// A module that is there but cannot be used.
#[derive(Debug)]
pub(crate) struct ModuleFault {
    pub(crate) module: String,
    pub(crate) why: String,
}

/// What [`select`] found.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// In the order to load them.
    pub(crate) modules: Vec<Module>,
    /// Drivers that are neither built in nor loadable.
    pub(crate) missing: Vec<&'static Driver>,
}

/// The modules for [`DRIVERS`] with what they depend on, dependencies first.
///
/// # Errors
/// Where a module that is wanted is damaged. One that is absent is no error: it is in `missing`.
pub(crate) fn select(source: &dyn Modules) -> Result<Selection, ModuleFault> {
    let mut selection = Selection::default();
    let mut have = BTreeSet::new();
    for driver in &DRIVERS {
        let mut chain = Chain { source, have: &have, modules: Vec::new(), visited: BTreeSet::new() };
        if chain.add(driver.module, 0)? {
            let Chain { mut modules, visited, .. } = chain;
            selection.modules.append(&mut modules);
            have.extend(visited);
        } else {
            selection.missing.push(driver);
        }
    }
    Ok(selection)
}

/// What one driver adds to the modules that are chosen already.
struct Chain<'a> {
    source: &'a dyn Modules,
    have: &'a BTreeSet<String>,
    modules: Vec<Module>,
    visited: BTreeSet<String>,
}

impl Chain<'_> {
    /// Appends a module behind its dependencies; false where it or one of them does not exist.
    fn add(&mut self, name: &str, depth: usize) -> Result<bool, ModuleFault> {
        let known = self.source.is_built_in(name) || self.have.contains(name);
        if known || !self.visited.insert(name.to_owned()) {
            return Ok(true);
        }
        let fault = |why: &str| ModuleFault { module: name.to_owned(), why: why.to_owned() };
        if depth > MAX_DEPTH {
            return Err(fault("at the end of an endless chain of dependencies"));
        }
        let Some(data) = self.source.load(name)? else { return Ok(false) };
        let info = elf::modinfo(&data).map_err(|why| fault(&format!("damaged: {why}")))?;
        for soft in soft_dependencies(&info) {
            self.add_soft(&soft, depth + 1)?;
        }
        for dependency in dependencies(&info) {
            if !self.add(&dependency, depth + 1)? {
                return Ok(false);
            }
        }
        self.modules.push(Module { name: name.to_owned(), data });
        Ok(true)
    }

    /// A soft dependency may name an algorithm (ext4's `crc32c`); its plain implementation is then
    /// called `NAME_generic`. What is not found is left out, as modprobe does.
    fn add_soft(&mut self, name: &str, depth: usize) -> Result<(), ModuleFault> {
        if !self.add(name, depth)? {
            self.add(&format!("{name}_generic"), depth)?;
        }
        Ok(())
    }
}

fn dependencies(info: &[&[u8]]) -> Vec<String> {
    values(info, b"depends=").flat_map(|list| list.split(',').map(normal_name).collect::<Vec<_>>()).collect()
}

/// The names after `pre:`, up to `post:`.
fn soft_dependencies(info: &[&[u8]]) -> Vec<String> {
    let mut names = Vec::new();
    for list in values(info, b"softdep=") {
        let words = list.split_whitespace().skip_while(|&w| w != "pre:").skip(1);
        names.extend(words.take_while(|&w| w != "post:").map(normal_name));
    }
    names
}

fn values<'a>(info: &[&'a [u8]], key: &[u8]) -> impl Iterator<Item = &'a str> {
    info.iter()
        .filter_map(move |entry| std::str::from_utf8(entry.strip_prefix(key)?).ok())
        .filter(|value| !value.is_empty())
}

/// Module names count `-` and `_` as one; the kernel prints underscores.
pub(crate) fn normal_name(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A relocatable ELF file with nothing but a `.modinfo` section.
    pub(crate) fn ko(info: &str) -> Vec<u8> {
        let info = info.replace(' ', "\0").replace('+', " ");
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut out = vec![0; 64];
        out[..6].copy_from_slice(b"\x7FELF\x02\x01");
        out[16] = 1;
        out[18] = 62;
        let (at_info, at_names) = (64, 64 + info.len());
        let table = at_names + names.len();
        out[40..48].copy_from_slice(&(table as u64).to_le_bytes());
        (out[58], out[60], out[62]) = (64, 3, 2);
        out.extend_from_slice(info.as_bytes());
        out.extend_from_slice(names);
        for (name, at, len) in [(0_u32, 0, 0), (1, at_info, info.len()), (10, at_names, names.len())] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4] = 1;
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(len as u64).to_le_bytes());
            out.extend_from_slice(&header);
        }
        out
    }

    struct Fake(BTreeMap<&'static str, &'static str>, &'static [&'static str]);

    impl Modules for Fake {
        fn is_built_in(&self, name: &str) -> bool {
            self.1.contains(&name)
        }
        fn load(&self, name: &str) -> Result<Option<Vec<u8>>, ModuleFault> {
            Ok(self.0.get(name).map(|info| ko(info)))
        }
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection.modules.iter().map(|m| m.name.as_str()).collect()
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let fake = Fake(
            BTreeMap::from([
                ("virtio", "license=GPL"),
                ("virtio_ring", "depends="),
                ("virtio_mmio", "depends=virtio-ring,virtio"),
                ("virtio_blk", "depends=virtio,virtio_ring"),
                ("ext4", "depends=mbcache,jbd2 softdep=pre:+crc32c+post:+late"),
                ("jbd2", ""),
                ("mbcache", ""),
                ("crc32c_generic", ""),
            ]),
            &["vmw_vsock_virtio_transport"],
        );
        let selection = select(&fake).unwrap();
        let wanted = "virtio_ring virtio virtio_mmio virtio_blk crc32c_generic mbcache jbd2 ext4";
        assert_eq!(names(&selection).join(" "), wanted);
        let missing: Vec<_> = selection.missing.iter().map(|d| d.module).collect();
        assert_eq!(missing.join(" "), "virtio_rng overlay fuse virtiofs virtio_net virtio_balloon");
    }

    #[test]
    fn a_driver_whose_dependency_is_absent_is_missing_and_leaves_nothing() {
        let fake = Fake(BTreeMap::from([("virtio_net", "depends=virtio,net_failover"), ("virtio", "")]), &[]);
        let selection = select(&fake).unwrap();
        assert!(selection.modules.is_empty(), "{:?}", names(&selection));
        assert!(selection.missing.iter().any(|d| d.module == "virtio_net"));
    }

    #[test]
    fn a_cycle_ends() {
        let fake = Fake(BTreeMap::from([("virtiofs", "depends=fuse"), ("fuse", "depends=virtiofs")]), &[]);
        assert_eq!(names(&select(&fake).unwrap()), ["virtiofs", "fuse"]);
    }

    #[test]
    fn a_module_that_is_no_elf_file_is_a_fault() {
        struct Junk;
        impl Modules for Junk {
            fn is_built_in(&self, _: &str) -> bool {
                false
            }
            fn load(&self, _: &str) -> Result<Option<Vec<u8>>, ModuleFault> {
                Ok(Some(b"junk".to_vec()))
            }
        }
        let fault = select(&Junk).unwrap_err();
        assert_eq!(
            (fault.module.as_str(), fault.why.as_str()),
            ("virtio_mmio", "damaged: no ELF file for x86-64")
        );
    }

    #[test]
    fn truncated_modules_never_panic() {
        let whole = ko("depends=a,b softdep=pre:+c");
        for len in 0..whole.len() {
            let _ = elf::modinfo(&whole[..len]);
        }
    }
}
