//! Objects from a folder of YAML files, watched by their metadata. A document that is wrong keeps what its file last
//! said well, and is reported; it changes nothing else. So does a file that cannot be read, which is tried until it can.
//! Only a file that is gone takes its objects with it at once: one that changed may still be being written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift};
use kube::Resource;
use tokio::sync::mpsc;

use super::document::Object;
use super::file::{File, Next, Stamp, contents};
use super::schema::Schemas;
use crate::objects::{Change, Objects, Touched};

/// How often the folder is looked at. Files are few, and notifications do not work on every file system.
const INTERVAL: Duration = Duration::from_millis(50);

/// Tells the builder what the folder holds, now and after every change, until the builder is gone.
///
/// # Errors
/// When the folder cannot be read at the start. Later it is reported, and the last good objects stay.
pub(crate) async fn watch(folder: PathBuf, changes: mpsc::Sender<Change>) -> anyhow::Result<()> {
    let mut reader = Reader::new(folder)?;
    reader.list().with_context(|| format!("the folder {} cannot be read", reader.folder.display()))?;
    loop {
        if reader.refresh() && changes.send(reader.change()).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

struct Reader {
    folder: PathBuf,
    schemas: Schemas,
    files: BTreeMap<PathBuf, File>,
    /// Counts the content of each object, in the place of the API server's generations; with the last one counted.
    generations: BTreeMap<String, (i64, Arc<Object>)>,
    unreadable: Option<String>,
    started: bool,
}

impl Reader {
    fn new(folder: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            folder,
            schemas: Schemas::load()?,
            files: BTreeMap::new(),
            generations: BTreeMap::new(),
            unreadable: None,
            started: false,
        })
    }

    /// Every YAML file with its stamp, or why it has none. Hidden files and folders are left out.
    fn list(&self) -> io::Result<BTreeMap<PathBuf, io::Result<Stamp>>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
            let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            if hidden || !yaml {
                continue;
            }
            // Through links, as mounted ConfigMaps have them.
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => {
                    found.insert(path, Ok(Stamp::of(&metadata)));
                }
                Ok(_) => {}
                // A file that went meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    found.insert(path, Err(error));
                }
            }
        }
        Ok(found)
    }

    /// Looks at every file. Whether anything changed.
    fn refresh(&mut self) -> bool {
        let found = match self.list() {
            Ok(found) => found,
            Err(error) => return self.cannot_read(&error),
        };
        let first = !std::mem::replace(&mut self.started, true);
        let mut changed = self.unreadable.take().is_some() || first;
        let gone: Vec<PathBuf> =
            self.files.keys().filter(|path| !found.contains_key(*path)).cloned().collect();
        let gone = gone.into_iter().map(|path| (path, Ok(None)));
        for (path, look) in found.into_iter().map(|(path, look)| (path, look.map(Some))).chain(gone) {
            let file = self.files.entry(path.clone()).or_default();
            match look.map(|stamp| file.look(stamp, first)) {
                Ok(Next::Nothing) => {}
                Ok(Next::Read(stamp)) => {
                    changed |= file.take(&path, contents(&path, &stamp), stamp, &self.schemas)
                }
                Ok(Next::Forget) => {
                    self.files.remove(&path);
                    changed = true;
                }
                Err(error) => changed |= file.cannot_read(&path, &error),
            }
        }
        changed
    }

    fn cannot_read(&mut self, error: &io::Error) -> bool {
        let text = format!("the folder cannot be read, so its last good objects stay: {error}");
        let changed = self.unreadable.as_ref() != Some(&text);
        if changed {
            tracing::warn!(folder = %self.folder.display(), "{text}");
        }
        self.unreadable = Some(text);
        changed
    }

    /// Everything that the folder says, as one change.
    fn change(&mut self) -> Change {
        let mut seen = BTreeMap::new();
        let mut bad = BTreeMap::new();
        if let Some(text) = &self.unreadable {
            bad.insert(self.folder.display().to_string(), text.clone());
        }
        for (path, file) in &self.files {
            if !file.wrong.is_empty() {
                bad.insert(path.display().to_string(), file.wrong.join("; "));
            }
            for object in &file.objects {
                if seen.insert(object.name(), Arc::clone(object)).is_some() {
                    bad.insert(object.name(), format!("written twice; the one in {} counts", path.display()));
                }
            }
        }
        let mut lists = Lists { bad, ..Lists::default() };
        for (name, object) in seen {
            let generation = Some(self.count(name, &object));
            match &*object {
                Object::Router(router) => lists.routers.push(numbered(router, generation)),
                Object::Cell(cell) => lists.cells.push(numbered(cell, generation)),
                Object::Policy(policy) => lists.policies.push(numbered(policy, generation)),
                Object::Shift(shift) => lists.shifts.push(numbered(shift, generation)),
                Object::Destination(destination) => {
                    lists.destinations.push(numbered(destination, generation));
                }
            }
        }
        Box::new(move |objects: &mut Objects| lists.replace(objects))
    }

    /// The generation that an API server would have given the object. One that was not read anew is not compared.
    fn count(&mut self, name: String, object: &Arc<Object>) -> i64 {
        let counted = self.generations.entry(name).or_insert_with(|| (1, Arc::clone(object)));
        if !Arc::ptr_eq(&counted.1, object) {
            let other = counted.1 != *object;
            *counted = (counted.0 + i64::from(other), Arc::clone(object));
        }
        counted.0
    }
}

fn numbered<K: Resource + Clone>(object: &K, generation: Option<i64>) -> K {
    let mut object = object.clone();
    object.meta_mut().generation = generation;
    object
}

/// Everything that the folder says, by kind.
#[derive(Default)]
struct Lists {
    routers: Vec<Router>,
    cells: Vec<Cell>,
    policies: Vec<RoutingPolicy>,
    shifts: Vec<TrafficShift>,
    destinations: Vec<Destination>,
    bad: BTreeMap<String, String>,
}

impl Lists {
    fn replace(self, objects: &mut Objects) -> Touched {
        let Self { routers, cells, policies, shifts, destinations, bad } = self;
        let other_bad = objects.bad != bad;
        objects.bad = bad;
        Touched::TABLE
            .when(other_bad)
            .and(objects.routers.replace(routers))
            .and(objects.cells.replace(cells))
            .and(objects.policies.replace(policies))
            .and(objects.shifts.replace(shifts))
            .and(objects.destinations.replace(destinations))
            .and(objects.slices.replace(vec![]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: &str = "apiVersion: bulkhead.dev/v1alpha1\nkind: Cell\nmetadata: {name: NAME}\nspec: {weight: WEIGHT, endpoints: ['127.0.0.1:1']}\n";

    fn cell(name: &str, weight: &str) -> String {
        CELL.replace("NAME", name).replace("WEIGHT", weight)
    }

    struct World {
        folder: tempfile::TempDir,
        reader: Reader,
        objects: Objects,
    }

    impl World {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder can be made");
            let reader = Reader::new(folder.path().to_owned()).expect("schemas load");
            Self { folder, reader, objects: Objects::default() }
        }

        /// Writes a file and looks at the folder until it is read: the cells with their weights, and how many things are
        /// wrong.
        fn after(&mut self, file: &str, text: &str) -> (Vec<(String, u32)>, usize) {
            fs::write(self.folder.path().join(file), text).expect("the file can be written");
            self.look();
            self.look()
        }

        fn look(&mut self) -> (Vec<(String, u32)>, usize) {
            self.reader.refresh();
            self.reader.change()(&mut self.objects);
            let cells = self.objects.cells.items();
            (
                cells.iter().map(|cell| (cell.name().to_owned(), cell.spec.weight)).collect(),
                self.objects.bad.len(),
            )
        }
    }

    fn at(cells: &[(&str, u32)]) -> Vec<(String, u32)> {
        cells.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect()
    }

    #[test]
    fn a_bad_file_keeps_its_last_good_objects_and_harms_no_other() {
        let mut world = World::new();
        assert_eq!(world.after("a.yaml", &cell("a", "10")), (at(&[("a", 10)]), 0));
        assert_eq!(world.after("b.yaml", &cell("b", "20")), (at(&[("a", 10), ("b", 20)]), 0));
        assert_eq!(world.after("a.yaml", "kind: ["), (at(&[("a", 10), ("b", 20)]), 1));
        // Of another length than before: where clocks are coarse, the stamp may be the same otherwise.
        assert_eq!(world.after("b.yaml", &cell("b", "5")), (at(&[("a", 10), ("b", 5)]), 1));
        assert_eq!(world.after("a.yaml", &cell("a", "40")), (at(&[("a", 40), ("b", 5)]), 0));
    }

    #[test]
    fn a_renamed_file_is_never_gone_and_a_removed_one_goes() {
        let mut world = World::new();
        let there = (at(&[("a", 10)]), 0);
        assert_eq!(world.after("a.yaml", &cell("a", "10")), there);
        let path = |name: &str| world.folder.path().join(name);
        fs::rename(path("a.yaml"), path("b.yaml")).expect("renamed");
        let other = path("b.yaml");
        for _ in 0..3 {
            assert_eq!(world.look(), there);
        }
        fs::remove_file(other).expect("removed");
        world.look();
        assert_eq!(world.look(), (vec![], 0));
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_keeps_its_objects_and_harms_no_other() {
        let mut world = World::new();
        assert_eq!(world.after("a.yaml", &cell("a", "10")), (at(&[("a", 10)]), 0));
        let path = world.folder.path().join("a.yaml");
        fs::remove_file(&path).expect("is there");
        // A link to itself is there, and no look leads anywhere.
        std::os::unix::fs::symlink(&path, &path).expect("can be made");
        world.look();
        assert_eq!(world.after("b.yaml", &cell("b", "20")), (at(&[("a", 10), ("b", 20)]), 1));
        assert!(!world.reader.refresh(), "it is said once");
        fs::remove_file(&path).expect("is there");
        world.look();
        assert_eq!(world.look(), (at(&[("b", 20)]), 0));
    }

    #[test]
    fn a_bad_document_among_good_ones_is_left_out_alone() {
        let mut world = World::new();
        let text = [cell("a", "10"), cell("b", "1000"), cell("c", "30")].join("---\n");
        assert_eq!(world.after("all.yaml", &text), (at(&[("a", 10), ("c", 30)]), 1));
    }

    #[test]
    fn a_file_is_read_only_when_nobody_is_writing_it() {
        let mut world = World::new();
        let file = world.folder.path().join("all.yaml");
        let both = |weight| [cell("a", weight), cell("b", weight)].join("---\n");
        let before = (at(&[("a", 10), ("b", 10)]), 0);
        assert_eq!(world.after("all.yaml", &both("10")), before);
        for half in [String::new(), cell("a", "20")] {
            fs::write(&file, half).expect("the file can be written");
            assert_eq!(world.look(), before);
        }
        // Another length: where clocks are coarse, the stamp of a file of the same length may be the same.
        assert_eq!(world.after("all.yaml", &both("100")), (at(&[("a", 100), ("b", 100)]), 0));
    }

    #[test]
    fn an_empty_file_takes_nothing_away_and_is_reported_and_a_removed_one_goes_at_once() {
        let mut world = World::new();
        assert_eq!(world.after("empty.yaml", ""), (at(&[]), 0));
        assert_eq!(world.after("a.yaml", &cell("a", "10")), (at(&[("a", 10)]), 0));
        assert_eq!(world.after("a.yaml", "\n"), (at(&[("a", 10)]), 1));
        fs::remove_file(world.folder.path().join("a.yaml")).expect("is there");
        world.look();
        assert_eq!(world.look(), (at(&[]), 0));
    }

    #[test]
    fn generations_count_content_and_not_writes() {
        let mut world = World::new();
        let generation = |world: &World| world.objects.cells.items()[0].metadata.generation;
        world.after("a.yaml", &cell("a", "10"));
        assert_eq!(generation(&world), Some(1));
        world.after("a.yaml", &(cell("a", "10") + "# a comment\n"));
        assert_eq!(generation(&world), Some(1));
        world.after("a.yaml", &cell("a", "0"));
        assert_eq!(generation(&world), Some(2));
    }
}
