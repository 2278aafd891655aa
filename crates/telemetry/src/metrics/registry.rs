//! Holds all exported metrics, and writes them in the order of their names.

use std::collections::BTreeMap;

use super::family::{Descriptor, Family};
use super::text::Writer;

/// All families with their descriptions, sorted by name, which is the order in which they are written.
#[derive(Default)]
pub(super) struct Registry {
    families: BTreeMap<&'static str, (Descriptor, Box<dyn Render>)>,
}

pub(super) trait Render: Send + Sync {
    fn render(&self, descriptor: &Descriptor, writer: &mut Writer<'_>);
}

impl<T: Family> Render for T {
    fn render(&self, descriptor: &Descriptor, writer: &mut Writer<'_>) {
        Family::render(self, descriptor, writer);
    }
}

impl Registry {
    /// Creates and registers the family that a row of the table describes.
    pub(super) fn add<T: Family>(&mut self, descriptor: Descriptor) -> T {
        let family = T::make(&descriptor);
        self.add_rendered(descriptor, Box::new(family.clone()));
        family
    }

    /// Registers a family that was created by the caller.
    pub(super) fn add_rendered(&mut self, descriptor: Descriptor, family: Box<dyn Render>) {
        let name = descriptor.name;
        assert!(self.families.insert(name, (descriptor, family)).is_none(), "{name} is in the table twice");
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        self.families.values().map(|(descriptor, _)| descriptor)
    }

    /// Writes the families for whose names `is_exported` returns true.
    pub(super) fn render(&self, writer: &mut Writer<'_>, is_exported: impl Fn(&str) -> bool) {
        for (descriptor, family) in self.families.values().filter(|(of, _)| is_exported(of.name)) {
            family.render(descriptor, writer);
        }
    }
}
