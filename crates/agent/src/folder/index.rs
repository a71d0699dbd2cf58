//! Which file each object comes from, and what changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

use kernlink_kubernetes::Objects;
use kernlink_services::{Change, EndpointSlice, Kind, Node, ObjectChange, ObjectName, Service};

use super::file::FileName;
use super::problem::Problem;

type Key = (Kind, ObjectName);

/// The objects of all files, without their contents: a hash of each is enough to find out whether it changed.
#[derive(Debug, Default)]
pub(super) struct Index {
    hasher: RandomState,
    /// The objects of each file, sorted.
    files: BTreeMap<FileName, Vec<Key>>,
    /// The file whose version of an object is delivered: the first one by name.
    effective: HashMap<Key, Effective>,
    /// The other files that have the object. Most objects are in one file, and not in this map.
    shadowed: HashMap<Key, BTreeSet<FileName>>,
}

#[derive(Debug)]
struct Effective {
    file: FileName,
    /// The hash of the version that was delivered. `None`: that version is of a file that no longer has the object.
    hash: Option<u64>,
}

/// What one or more new versions of files change.
#[derive(Debug, Default)]
pub(super) struct Difference {
    changes: BTreeMap<Key, Change>,
    /// The files that have to be read again, because an object of theirs became effective.
    pub(super) reread: BTreeSet<FileName>,
}

impl Difference {
    /// The changes, at most one for each object: Services, then EndpointSlices, then Nodes.
    pub(super) fn into_changes(self) -> Vec<Change> {
        self.changes.into_values().collect()
    }
}

impl Index {
    /// Replaces the objects of a file. An object that may be in the text but could not be read stays as it is. Returns the objects that occur
    /// more than once in the text; the last version is used.
    pub(super) fn set_file(
        &mut self,
        file: &FileName,
        objects: Objects,
        difference: &mut Difference,
    ) -> Vec<Problem> {
        let mut keys = HashSet::new();
        let mut repeated = Vec::new();
        let Objects {
            services,
            endpoint_slices,
            nodes,
            missing,
            ..
        } = objects;
        let mut of_file = OfFile {
            index: self,
            file,
            keys: &mut keys,
            repeated: &mut repeated,
            difference,
        };
        of_file.add(Kind::Service, services, |o: &Service| &o.name, Change::Services);
        of_file.add(
            Kind::EndpointSlice,
            endpoint_slices,
            |o: &EndpointSlice| &o.name,
            Change::EndpointSlices,
        );
        of_file.add(Kind::Node, nodes, |o: &Node| &o.name, Change::Nodes);
        for key in self.files.remove(file).unwrap_or_default() {
            if keys.contains(&key) {
                continue;
            }
            if missing.may_include(key.0, &key.1) {
                keys.insert(key);
            } else {
                self.withdraw(file, &key, difference);
            }
        }
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_unstable();
        self.files.insert(Arc::clone(file), keys);
        repeated
    }

    /// Removes a file with its objects.
    pub(super) fn remove_file(&mut self, file: &FileName, difference: &mut Difference) {
        for key in self.files.remove(file).unwrap_or_default() {
            self.withdraw(file, &key, difference);
        }
    }

    /// A file does not have an object any more.
    fn withdraw(&mut self, file: &FileName, key: &Key, difference: &mut Difference) {
        let Some(effective) = self.effective.get_mut(key) else {
            return;
        };
        let next = self.shadowed.get_mut(key).and_then(|files| {
            if effective.file == *file {
                files.pop_first()
            } else {
                files.remove(file);
                None
            }
        });
        if self.shadowed.get(key).is_some_and(BTreeSet::is_empty) {
            self.shadowed.remove(key);
        }
        if effective.file != *file {
            return;
        }
        match next {
            Some(next) => {
                // Until that file was read again, the previous version stays in effect.
                effective.file = Arc::clone(&next);
                effective.hash = None;
                difference.reread.insert(next);
            }
            None => {
                self.effective.remove(key);
                let delete = delete(key.0, key.1.clone());
                difference.changes.insert(key.clone(), delete);
            }
        }
    }

    /// Whether a file has an object.
    pub(super) fn has(&self, file: &FileName, kind: Kind, name: &ObjectName) -> bool {
        let keys = self.files.get(file);
        keys.is_some_and(|keys| {
            keys.binary_search_by(|key| (key.0, &key.1).cmp(&(kind, name)))
                .is_ok()
        })
    }

    /// The number of objects.
    pub(super) fn len(&self) -> usize {
        self.effective.len()
    }

    /// The objects that are in several files.
    pub(super) fn duplicates(&self) -> impl Iterator<Item = Problem> {
        self.shadowed.iter().filter_map(|(key, files)| {
            let used = &self.effective.get(key)?.file;
            let (kind, name) = key;
            let others: Vec<&str> = files.iter().map(|file| &**file).collect();
            let others = others.join(", ");
            let reason = format!("is in {used} and in {others}; that of {used} is used");
            Some(Problem::of_object(None, *kind, name, reason))
        })
    }
}

/// The state of [`Index::set_file`].
struct OfFile<'a> {
    index: &'a mut Index,
    file: &'a FileName,
    keys: &'a mut HashSet<Key>,
    repeated: &'a mut Vec<Problem>,
    difference: &'a mut Difference,
}

impl OfFile<'_> {
    /// Adds the objects of one kind.
    fn add<T: Hash>(
        &mut self,
        kind: Kind,
        objects: Vec<T>,
        name: fn(&T) -> &ObjectName,
        change: fn(ObjectChange<T>) -> Change,
    ) {
        // The last version of an object is seen first.
        for object in objects.into_iter().rev() {
            let key = (kind, name(&object).clone());
            if !self.keys.insert(key.clone()) {
                let reason = "occurs more than once; the last version is used".to_owned();
                let problem = Problem::of_object(Some(self.file), kind, &key.1, reason);
                self.repeated.push(problem);
                continue;
            }
            let hash = self.index.hasher.hash_one(&object);
            if self.is_change(&key, hash) {
                self.difference
                    .changes
                    .insert(key, change(ObjectChange::Upsert(object)));
            }
        }
    }

    /// Records that the file has an object, and returns whether its version has to be delivered.
    fn is_change(&mut self, key: &Key, hash: u64) -> bool {
        let file = self.file;
        let Some(effective) = self.index.effective.get_mut(key) else {
            let effective = Effective {
                file: Arc::clone(file),
                hash: Some(hash),
            };
            self.index.effective.insert(key.clone(), effective);
            return true;
        };
        if effective.file < *file {
            let files = self.index.shadowed.entry(key.clone()).or_default();
            files.insert(Arc::clone(file));
            return false;
        }
        if effective.file > *file {
            let other = std::mem::replace(&mut effective.file, Arc::clone(file));
            let files = self.index.shadowed.entry(key.clone()).or_default();
            files.remove(file);
            files.insert(other);
        }
        effective.hash.replace(hash) != Some(hash)
    }
}

fn delete(kind: Kind, name: ObjectName) -> Change {
    match kind {
        Kind::Service => Change::Services(ObjectChange::Delete(name)),
        Kind::EndpointSlice => Change::EndpointSlices(ObjectChange::Delete(name)),
        Kind::Node => Change::Nodes(ObjectChange::Delete(name)),
    }
}

#[cfg(test)]
mod tests {
    use kernlink_kubernetes::manifest::read;

    use super::*;

    /// A Service with a cluster IP for each pair.
    fn services(pairs: &[(&str, &str)]) -> Objects {
        let texts = pairs.iter().map(|(name, address)| {
            format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n")
        });
        read("f", &texts.collect::<String>())
    }

    /// The changes as text, such as `+a 10.0.0.1` and `-a`.
    fn text(difference: Difference) -> Vec<String> {
        let changes = difference.into_changes().into_iter();
        changes
            .map(|change| match change {
                Change::Services(ObjectChange::Upsert(service)) => {
                    format!("+{} {}", service.name.name, service.cluster_ip)
                }
                Change::Services(ObjectChange::Delete(name)) => format!("-{}", name.name),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn set(index: &mut Index, file: &str, objects: Objects) -> Vec<String> {
        let mut difference = Difference::default();
        index.set_file(&file.into(), objects, &mut difference);
        text(difference)
    }

    #[test]
    fn only_what_changed_is_delivered() {
        let mut index = Index::default();
        let first = [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")];
        assert_eq!(set(&mut index, "f", services(&first)).len(), 3);
        assert!(set(&mut index, "f", services(&first)).is_empty());
        let second = [("a", "10.0.0.1"), ("b", "10.0.0.9"), ("d", "10.0.0.4")];
        assert_eq!(
            set(&mut index, "f", services(&second)),
            ["+b 10.0.0.9", "-c", "+d 10.0.0.4"]
        );
        assert_eq!(index.len(), 3);
    }

    #[test]
    fn an_object_that_could_not_be_read_stays() {
        let mut index = Index::default();
        set(
            &mut index,
            "f",
            services(&[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")]),
        );
        // `b` has a name and no valid port, `c` is gone.
        let broken = read(
            "f",
            "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {clusterIP: 10.0.0.2, ports: [{port: 99999}]}\n",
        );
        assert_eq!(set(&mut index, "f", broken), ["-c"]);
        // Any object may be in a text that is not YAML.
        assert!(set(&mut index, "f", read("f", "kind: [")).is_empty());
        assert_eq!(index.len(), 2);
        assert_eq!(set(&mut index, "f", services(&[("a", "10.0.0.1")])), ["-b"]);
    }

    #[test]
    fn the_first_file_by_name_wins_regardless_of_the_order_of_reading() {
        let mut index = Index::default();
        assert_eq!(
            set(&mut index, "b", services(&[("x", "10.0.0.2")])),
            ["+x 10.0.0.2"]
        );
        assert!(set(&mut index, "c", services(&[("x", "10.0.0.3")])).is_empty());
        assert_eq!(
            set(&mut index, "a", services(&[("x", "10.0.0.1")])),
            ["+x 10.0.0.1"]
        );
        let duplicates: Vec<_> = index.duplicates().map(|problem| problem.to_string()).collect();
        assert_eq!(
            duplicates,
            ["Service default/x: is in a and in b, c; that of a is used"]
        );
        // The file that has it next is read again; until then the previous version stays.
        let mut difference = Difference::default();
        index.remove_file(&"a".into(), &mut difference);
        assert_eq!(difference.reread, [FileName::from("b")].into());
        assert!(text(difference).is_empty());
        assert_eq!(
            set(&mut index, "b", services(&[("x", "10.0.0.2")])),
            ["+x 10.0.0.2"]
        );
        assert_eq!(set(&mut index, "c", services(&[])), Vec::<String>::new());
        assert_eq!(index.duplicates().count(), 0);
        assert_eq!(set(&mut index, "b", services(&[])), ["-x"]);
    }

    #[test]
    fn an_object_that_moves_to_another_file_is_not_deleted() {
        for (from, to) in [("a", "b"), ("b", "a")] {
            let mut index = Index::default();
            set(&mut index, from, services(&[("x", "10.0.0.1")]));
            let mut difference = Difference::default();
            let mut files = [(from, services(&[])), (to, services(&[("x", "10.0.0.1")]))];
            files.sort_by_key(|(name, _)| *name);
            for (name, objects) in files {
                index.set_file(&name.into(), objects, &mut difference);
            }
            assert!(
                !text(difference).contains(&"-x".to_owned()),
                "from {from} to {to}"
            );
            assert_eq!(index.len(), 1);
        }
    }

    #[test]
    fn an_object_that_occurs_twice_in_a_file_is_reported_and_the_last_one_used() {
        let mut index = Index::default();
        let mut difference = Difference::default();
        let repeated = index.set_file(
            &"f".into(),
            services(&[("x", "10.0.0.1"), ("x", "10.0.0.2")]),
            &mut difference,
        );
        let repeated: Vec<_> = repeated.iter().map(ToString::to_string).collect();
        assert_eq!(
            repeated,
            ["f: Service default/x: occurs more than once; the last version is used"]
        );
        assert_eq!(text(difference), ["+x 10.0.0.2"]);
    }
}
