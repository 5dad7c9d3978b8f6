//! Several sources as one tree, each laid over those before it.
//!
//! Directories are merged, and the entry of the last source that has one counts. Any other entry replaces one of the
//! same name in an earlier source. A directory over another entry, or the reverse, is an error: it would hide a whole
//! tree, or cut a link such as `/lib` to `/usr/lib`.
//!
//! Each source is read twice: once for its names, and once for its content. So each entry is given once, and the space
//! of the tree is counted exactly. Replaced and excluded files are not given. If one of them is the first name of
//! several, the next name that stays takes its place.
//!
//! *Memory*: the names of all sources but the first, and those of replaced and excluded files.

use std::sync::Arc;

use f2fs::{Error, Result, printable};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Entry, Exclusion, Kind, Metadata, Run, Source,
    directories::{Directories, DirectoryId},
    exclude::Role,
    path::{components, split},
};

/// A source with its name for messages.
pub struct Layer<'s> {
    /// Its name.
    pub name: String,
    /// The source.
    pub source: Box<dyn Source + Send + 's>,
}

/// The names of several sources, from which the tree of all follows. See the module.
pub struct Overlay {
    exclusion: Arc<Exclusion>,
    /// The entries of all layers but the first.
    upper: Directories<Upper>,
    /// First names that are not given, by layer, and the names that take their places, if there are any.
    moved: FxHashMap<(usize, Vec<u8>), Option<Vec<u8>>>,
    /// Further names that are not given, by layer, and their first names.
    unlinked: FxHashMap<(usize, Vec<u8>), Vec<u8>>,
}

/// A directory of the upper layers.
struct Upper {
    /// The last layer in which it is a directory.
    layer: usize,
    /// Metadata from the last layer that has an entry of its own for it.
    meta: Option<Box<Metadata>>,
    /// The last layer of each name that is not a directory.
    leaves: FxHashMap<Box<[u8]>, usize>,
}

impl Upper {
    fn new(layer: usize) -> Upper {
        Upper { layer, meta: None, leaves: FxHashMap::default() }
    }
}

impl Overlay {
    /// Reads the names of all layers, the lowest of which is the first. `exclusion` applies to each of them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is a directory in one layer and another entry in another one. Those of the
    /// sources.
    pub fn plan(layers: Vec<Layer<'_>>, exclusion: Arc<Exclusion>) -> Result<Overlay> {
        let (names, sources): (Vec<_>, Vec<_>) =
            layers.into_iter().map(|layer| (layer.name, layer.source)).unzip();
        let upper = Directories::new(Upper::new(0));
        let (moved, unlinked) = (FxHashMap::default(), FxHashMap::default());
        let mut overlay = Overlay { exclusion, upper, moved, unlinked };
        // From the last to the first, so that each entry meets those that are laid over it.
        for (layer, mut source) in sources.into_iter().enumerate().rev() {
            while let Some(entry) = source.next_entry()? {
                overlay.add(layer, &entry, &names)?;
            }
        }
        Ok(overlay)
    }

    /// Returns the tree of the same layers, opened again.
    pub fn tree<'s>(&'s self, layers: Vec<Layer<'s>>) -> impl Source + Send + 's {
        let mut layers = layers.into_iter().map(|layer| layer.source);
        OverlaySource { overlay: self, top: layers.next(), layers, layer: 0, given: FxHashSet::default() }
    }

    fn add(&mut self, layer: usize, entry: &Entry, names: &[String]) -> Result<()> {
        let role = Role::from(&entry.kind);
        let is_excluded = self.exclusion.covers(&entry.path, role);
        let is_missing = is_excluded || self.is_replaced(layer, &entry.path);
        match &entry.kind {
            Kind::Directory => {}
            Kind::HardLink { to } => {
                let first = self.first_name(layer, to).to_vec();
                match is_missing {
                    true => _ = self.unlinked.insert((layer, entry.path.clone()), first),
                    false => self.add_link(layer, &entry.path, &first)?,
                }
            }
            _ if is_missing => _ = self.moved.entry((layer, entry.path.clone())).or_default(),
            _ => {}
        }
        if is_excluded {
            return Ok(());
        }
        if role == Role::Directory {
            let directory = self.directory(layer, &entry.path, names)?;
            if let Some(directory) = directory.filter(|_| layer > 0) {
                let upper = self.upper.get_mut(directory);
                // A later entry of the same layer replaces an earlier one.
                if upper.meta.is_none() || upper.layer == layer {
                    upper.meta = Some(Box::new(entry.meta.clone()));
                }
            }
            return Ok(());
        }
        let (parent, name) = split(&entry.path);
        if let Some(parent) = self.directory(layer, parent, names)? {
            if let Some(directory) = self.upper.child(parent, name) {
                let above = self.upper.get(directory).layer;
                if above != layer {
                    return Err(conflict(&entry.path, (above, layer), names));
                }
            }
            if layer > 0 {
                self.upper.get_mut(parent).leaves.entry(name.into()).or_insert(layer);
            }
        }
        Ok(())
    }

    /// Lets a further name of a file take the place of the first name if that is not part of the tree. An archive may
    /// link to a file of the layers below, whose content it does not have.
    fn add_link(&mut self, layer: usize, path: &[u8], first: &[u8]) -> Result<()> {
        if self.is_given(layer, first) {
            return Ok(());
        }
        let Some(mover) = self.moved.get_mut(&(layer, first.to_vec())) else {
            let (path, first) = (printable::path(path), printable::path(first));
            let what = format!("{path}: hard link to {first}, which is replaced or left out");
            return Err(Error::Invalid(what.into()));
        };
        mover.get_or_insert_with(|| path.to_vec());
        Ok(())
    }

    /// Returns the first name of a file. An archive may link to a further name.
    fn first_name<'p>(&'p self, layer: usize, path: &'p [u8]) -> &'p [u8] {
        self.unlinked.get(&(layer, path.to_vec())).map_or(path, Vec::as_slice)
    }

    /// Returns the directory at a path among the upper layers, and enters it there for a layer above the first. `None`
    /// if only the first layer has it.
    fn directory(&mut self, layer: usize, path: &[u8], names: &[String]) -> Result<Option<DirectoryId>> {
        let mut at = DirectoryId::ROOT;
        let mut end = 0;
        for name in components(path) {
            end += name.len() + usize::from(end > 0);
            if let Some(above) = self.upper.get(at).leaves.get(name).copied().filter(|above| *above != layer)
            {
                return Err(conflict(&path[..end], (layer, above), names));
            }
            at = match self.upper.child(at, name) {
                Some(child) => child,
                None if layer == 0 => return Ok(None),
                None => self.upper.insert(at, name, Upper::new(layer))?,
            };
        }
        Ok(Some(at))
    }

    /// Returns true if an entry of a layer that is not a directory is part of the tree.
    fn is_given(&self, layer: usize, path: &[u8]) -> bool {
        !self.exclusion.covers(path, Role::Leaf) && !self.is_replaced(layer, path)
    }

    /// Returns true if a layer above has an entry of this path that is not a directory.
    fn is_replaced(&self, layer: usize, path: &[u8]) -> bool {
        let (parent, name) = split(path);
        let above = self.upper.find(parent).and_then(|parent| self.upper.get(parent).leaves.get(name));
        above.is_some_and(|above| *above > layer)
    }
}

/// Returns the error of a name that is a directory in the first of two layers only.
fn conflict(path: &[u8], (directory, other): (usize, usize), names: &[String]) -> Error {
    let (path, directory, other) = (printable::path(path), &names[directory], &names[other]);
    Error::Invalid(format!("{path}: a directory in {directory} and not in {other}; it cannot be both").into())
}

/// The tree of several sources.
struct OverlaySource<'s, L> {
    overlay: &'s Overlay,
    /// The source that is read; `None` at the end.
    top: Option<Box<dyn Source + Send + 's>>,
    /// The sources after it.
    layers: L,
    /// Number of the source that is read.
    layer: usize,
    /// Directories of the upper layers that were given.
    given: FxHashSet<DirectoryId>,
}

impl<'s, L: Iterator<Item = Box<dyn Source + Send + 's>>> OverlaySource<'s, L> {
    /// Returns an entry of the current layer as it is in the tree, or `None` if it is not there.
    fn placed(&mut self, mut entry: Entry) -> Option<Entry> {
        let overlay = self.overlay;
        if entry.kind == Kind::Directory {
            if overlay.exclusion.covers(&entry.path, Role::Directory) {
                return None;
            }
            let Some(directory) = overlay.upper.find(&entry.path) else { return Some(entry) };
            if !self.given.insert(directory) {
                return None;
            }
            if let Some(meta) = &overlay.upper.get(directory).meta {
                entry.meta = (**meta).clone();
            }
            return Some(entry);
        }
        let mover = |path: &[u8]| overlay.moved.get(&(self.layer, path.to_vec()))?.as_ref();
        let is_given = overlay.is_given(self.layer, &entry.path);
        if let Kind::HardLink { to } = &mut entry.kind {
            if !is_given {
                return None;
            }
            let first = overlay.first_name(self.layer, to);
            let first = mover(first).map_or(first, Vec::as_slice);
            if *first == entry.path {
                return None;
            }
            *to = first.to_vec();
        } else if !is_given {
            entry.path.clone_from(mover(&entry.path)?);
        }
        Some(entry)
    }
}

impl<'s, L: Iterator<Item = Box<dyn Source + Send + 's>>> Source for OverlaySource<'s, L> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        while let Some(top) = &mut self.top {
            match top.next_entry()? {
                Some(entry) => {
                    if let Some(entry) = self.placed(entry) {
                        return Ok(Some(entry));
                    }
                }
                None => {
                    self.top = self.layers.next();
                    self.layer += 1;
                }
            }
        }
        Ok(None)
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        self.top.as_mut().map_or(Ok(None), |top| top.next_run(buf))
    }

    fn refused(&mut self) {
        if let Some(top) = &mut self.top {
            top.refused();
        }
    }

    fn is_first_name(&self) -> bool {
        self.top.as_ref().is_some_and(|top| top.is_first_name())
    }

    fn skip_data(&mut self) {
        if let Some(top) = &mut self.top {
            top.skip_data();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source of entries without data, each a path with its kind: `d/` a directory, `l>f` a hard link.
    struct List(std::vec::IntoIter<Entry>);

    impl List {
        fn of(uid: u32, text: &str) -> List {
            let entries = text.split_whitespace().map(|word| {
                let (path, kind) = match (word.strip_suffix('/'), word.split_once('>')) {
                    (Some(path), _) => (path, Kind::Directory),
                    (_, Some((path, to))) => (path, Kind::HardLink { to: to.into() }),
                    _ => (word, Kind::Fifo),
                };
                let path = if path == "." { "" } else { path };
                Entry { path: path.into(), kind, meta: Metadata { uid, ..Metadata::default() } }
            });
            List(entries.collect::<Vec<_>>().into_iter())
        }
    }

    impl Source for List {
        fn next_entry(&mut self) -> Result<Option<Entry>> {
            Ok(self.0.next())
        }

        fn next_run(&mut self, _: &mut [u8]) -> Result<Option<Run>> {
            Ok(None)
        }
    }

    fn layers(texts: &[&str]) -> Vec<Layer<'static>> {
        let layer = |(n, text): (usize, &&str)| {
            let (name, source) = (format!("source {n}"), Box::new(List::of(n as u32, text)));
            Layer { name, source }
        };
        texts.iter().enumerate().map(layer).collect()
    }

    /// Returns the tree as text: each entry with the number of the source that its metadata is from.
    fn tree(texts: &[&str], exclude: &[&str]) -> Result<String> {
        let exclusion = Arc::new(Exclusion::new(exclude)?);
        let overlay = Overlay::plan(layers(texts), exclusion)?;
        let mut source = overlay.tree(layers(texts));
        let mut words = Vec::new();
        while let Some(Entry { path, kind, meta }) = source.next_entry()? {
            let path = if path.is_empty() { ".".into() } else { String::from_utf8_lossy(&path).into_owned() };
            let kind = match kind {
                Kind::Directory => "/".into(),
                Kind::HardLink { to } => format!(">{}", String::from_utf8_lossy(&to)),
                _ => String::new(),
            };
            words.push(format!("{path}{kind}:{}", meta.uid));
        }
        Ok(words.join(" "))
    }

    #[test]
    fn a_later_source_replaces_files_and_gives_directories_its_metadata() {
        for (texts, expected) in [
            (&["./ a d/ d/x d/y", "./ b d/ d/x"][..], ".:1 a:0 d/:1 d/y:0 b:1 d/x:1"),
            // An archive may have no entries for directories, or have them last.
            (&["d/x d/y", "d/y d/z"], "d/x:0 d/y:1 d/z:1"),
            (&["d/x d/", "d/y"], "d/x:0 d/:0 d/y:1"),
            (&["d/x", "d/y d/"], "d/x:0 d/y:1 d/:1"),
            (&["./ a b", "./ a", "./ a b/x"], ""),
            (&["a b", "a", "a"], "b:0 a:2"),
            (&["d/ d/a", "d/ d/a", "d/b"], "d/:1 d/a:1 d/b:2"),
        ] {
            match expected {
                "" => assert!(tree(texts, &[]).is_err(), "{texts:?}"),
                expected => assert_eq!(tree(texts, &[]).unwrap(), expected.replace(".:", "./:"), "{texts:?}"),
            }
        }
    }

    #[test]
    fn the_next_name_of_a_file_takes_the_place_of_a_replaced_or_excluded_one() {
        for (texts, exclude, expected) in [
            (&["a b>a c>a", "a"][..], &[][..], "b:0 c>b:0 a:1"),
            (&["a b>a c>a", "a b"], &[], "c:0 a:1 b:1"),
            (&["a b>a", "a b"], &[], "a:1 b:1"),
            (&["a b>a", "b"], &[], "a:0 b:1"),
            (&["a b>a c>b", "b"], &[], "a:0 c>a:0 b:1"),
            (&["a b>a c>b", "a b"], &[], "c:0 a:1 b:1"),
            (&["a d/ d/b>a"], &["a"], "d/b:0 d/:0"),
            (&["a b>a", "x y>x", "x"], &["a"], "b:0 y:1 x:2"),
        ] {
            assert_eq!(tree(texts, exclude).unwrap(), expected, "{texts:?} without {exclude:?}");
        }
    }

    #[test]
    fn a_link_to_a_replaced_file_of_a_lower_source_is_refused() {
        assert_eq!(tree(&["x", "y>x"], &[]).unwrap(), "x:0 y>x:1");
        for (texts, exclude) in [(&["x", "y>x", "x"][..], &[][..]), (&["x", "y>x"], &["x"])] {
            let error = tree(texts, exclude).unwrap_err().to_string();
            assert!(error.starts_with("y: hard link to x, which"), "{error}");
        }
    }

    #[test]
    fn patterns_apply_to_every_source() {
        let texts = ["a.o d/ d/x d/e/ d/e/y", "b.o c d/ d/e/z"];
        assert_eq!(tree(&texts, &["*.o", "/d/e"]).unwrap(), "d/:1 d/x:0 c:1");
    }

    #[test]
    fn a_directory_and_another_entry_of_one_name_are_refused() {
        for (texts, path) in [
            (["lib", "lib/"], "lib"),
            (["lib/", "lib"], "lib"),
            (["lib", "lib/modules/x"], "lib"),
            (["usr/lib/x/y", "usr/lib"], "usr/lib"),
            (["usr/lib/", "usr/lib"], "usr/lib"),
        ] {
            let error = tree(&texts, &[]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{path}: a directory in source ")), "{texts:?}: {error}");
            assert!(error.contains("source 0") && error.contains("source 1"), "{error}");
            tree(&texts, &["lib"]).unwrap();
        }
    }
}
