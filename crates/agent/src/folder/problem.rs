//! What is invalid in a folder, and what of it is solved.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::{self, Write};
use std::hash::Hash;
use std::sync::Arc;

use kernlink_kubernetes::manifest;
use kernlink_services::escape::EscapeWriter;
use kernlink_services::{Kind, ObjectName};

use super::file::FileName;

/// Something that is invalid in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Problem {
    /// Where it is.
    pub place: Place,
    /// The line of the file, from 1. `None`: the problem is not about a document. It is no part of the place: it changes with the text before
    /// it.
    pub line: Option<usize>,
    /// What is invalid, and what is valid.
    pub reason: String,
}

/// A part of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Place {
    /// The name of the file. `None`: the folder, or an object in several files.
    pub file: Option<Arc<str>>,
    /// The position of the document in the file, from 1. `None`: the whole file.
    pub document: Option<usize>,
    /// Kind, namespace and name of the object, `Service shop/web`, as far as they are known.
    pub object: String,
    /// The path of the field; empty if it is not a field.
    pub field: String,
}

impl Problem {
    /// A problem of the folder itself. The reason names its path.
    pub(super) fn of_folder(reason: String) -> Self {
        Self::at(Place::default(), reason)
    }

    /// A problem of a whole file.
    pub(super) fn of_file(file: &FileName, reason: String) -> Self {
        let place = Place {
            file: Some(FileName::clone(file)),
            ..Place::default()
        };
        Self::at(place, reason)
    }

    /// A problem of an object: in this file, or in several ones.
    pub(super) fn of_object(file: Option<&FileName>, kind: Kind, name: &ObjectName, reason: String) -> Self {
        let place = Place {
            file: file.cloned(),
            object: format!("{kind} {name}"),
            ..Place::default()
        };
        Self::at(place, reason)
    }

    /// An error in the text of a file.
    pub(super) fn of_text(file: &FileName, error: &manifest::Error) -> Self {
        Self {
            place: Place {
                file: Some(FileName::clone(file)),
                document: Some(error.document),
                object: error.object.clone(),
                field: error.field.clone(),
            },
            line: Some(error.line),
            reason: error.reason.clone(),
        }
    }

    fn at(place: Place, reason: String) -> Self {
        Self {
            place,
            line: None,
            reason,
        }
    }

    /// Whether its object has a name. Otherwise the problem may be about any object.
    fn has_name(&self) -> bool {
        // Without a name there is at most a kind.
        self.place.object.contains(' ')
    }
}

impl fmt::Display for Problem {
    /// All parts that are known, on one line; control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        let Place {
            file,
            document,
            object,
            field,
        } = &self.place;
        if let Some(file) = file {
            write!(f, "{file}: ")?;
        }
        match (document, self.line) {
            (Some(document), Some(line)) => write!(f, "document {document} (line {line}): ")?,
            (Some(document), None) => write!(f, "document {document}: ")?,
            (None, _) => {}
        }
        for part in [object, field] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.reason)
    }
}

/// What changed between the problems of two readings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference<'a> {
    /// The problems that did not exist before.
    pub(crate) new: Vec<&'a Problem>,
    /// The problems that do not exist any more, without those that another one replaced: what could not be read is then still not known.
    pub(crate) solved: Vec<&'a Problem>,
}

impl<'a> Difference<'a> {
    /// Compares two readings. A problem that is in another line or document is the same one.
    pub(crate) fn between(before: &'a BTreeSet<Problem>, now: &'a BTreeSet<Problem>) -> Self {
        let mut gone: Vec<&Problem> = before.difference(now).collect();
        let mut new: Vec<&Problem> = now.difference(before).collect();
        // Of equal problems in several documents, those whose document is the same are found first.
        cancel(&mut gone, &mut new, |problem| (&problem.place, &problem.reason));
        cancel(&mut gone, &mut new, |problem| {
            let place = &problem.place;
            (&place.file, &place.object, &place.field, &problem.reason)
        });
        let replaced = Replaced::by(&new);
        gone.retain(|problem| !replaced.contains(problem));
        Self { new, solved: gone }
    }
}

/// Removes pairs of equal keys from two lists.
fn cancel<'a, K: Eq + Hash>(
    gone: &mut Vec<&'a Problem>,
    new: &mut Vec<&'a Problem>,
    key: impl Fn(&'a Problem) -> K,
) {
    /// Whether there was one more of this key.
    fn take<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) -> bool {
        let count = counts.entry(key).or_default();
        let is_left = *count > 0;
        *count = count.saturating_sub(1);
        is_left
    }
    let mut of_new: HashMap<K, usize> = HashMap::new();
    for problem in new.iter() {
        *of_new.entry(key(problem)).or_default() += 1;
    }
    let mut paired: HashMap<K, usize> = HashMap::new();
    gone.retain(|problem| {
        let is_paired = take(&mut of_new, key(problem));
        if is_paired {
            *paired.entry(key(problem)).or_default() += 1;
        }
        !is_paired
    });
    new.retain(|problem| !take(&mut paired, key(problem)));
}

/// The places that have a new problem.
#[derive(Default)]
struct Replaced<'a> {
    /// The files with any new problem.
    files: HashSet<Option<&'a FileName>>,
    /// The files with a problem that may be about any object.
    any_object: HashSet<Option<&'a FileName>>,
    documents: HashSet<(Option<&'a FileName>, usize)>,
    objects: HashSet<(Option<&'a FileName>, &'a str)>,
}

impl<'a> Replaced<'a> {
    fn by(new: &[&'a Problem]) -> Self {
        let mut replaced = Self::default();
        for problem in new {
            let file = problem.place.file.as_ref();
            replaced.files.insert(file);
            if problem.has_name() {
                replaced.objects.insert((file, &problem.place.object));
            } else {
                replaced.any_object.insert(file);
            }
            if let Some(document) = problem.place.document {
                replaced.documents.insert((file, document));
            }
        }
        replaced
    }

    /// Whether what a problem is about may have a new one.
    fn contains(&self, problem: &'a Problem) -> bool {
        let file = problem.place.file.as_ref();
        let is_own = match problem.place.document {
            _ if problem.has_name() => self.objects.contains(&(file, &problem.place.object)),
            Some(document) => self.documents.contains(&(file, document)),
            None => self.files.contains(&file),
        };
        is_own || self.any_object.contains(&file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A problem of a document of the file `a.yaml`.
    fn problem(document: usize, line: usize, object: &str, reason: &str) -> Problem {
        Problem {
            place: Place {
                file: Some("a.yaml".into()),
                document: Some(document),
                object: object.to_owned(),
                field: String::new(),
            },
            line: Some(line),
            reason: reason.to_owned(),
        }
    }

    fn file(name: &str, reason: &str) -> Problem {
        Problem::of_file(&name.into(), reason.to_owned())
    }

    /// What is new, and what is solved.
    fn compare(before: &[&Problem], now: &[&Problem]) -> [Vec<String>; 2] {
        let [before, now] = [before, now].map(|problems| problems.iter().copied().cloned().collect());
        let Difference { new, solved } = Difference::between(&before, &now);
        [new, solved].map(|problems| problems.into_iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_problem_in_another_line_or_document_is_the_same_one() {
        let (x, y) = (
            problem(1, 1, "Service n/x", "r"),
            problem(2, 8, "Service n/y", "r"),
        );
        let moved = problem(2, 7, "Service n/y", "r");
        assert_eq!(compare(&[&x, &y], &[&moved]), [vec![], vec![x.to_string()]]);
        let alone = problem(1, 1, "Service n/y", "r");
        assert_eq!(compare(&[&x, &y], &[&alone]), [vec![], vec![x.to_string()]]);
        // No object is known.
        let (x, y) = (problem(1, 1, "", "r"), problem(2, 8, "", "r"));
        let moved = problem(2, 9, "", "r");
        assert_eq!(compare(&[&x, &y], &[&moved]), [vec![], vec![x.to_string()]]);
        let moved = problem(3, 9, "", "r");
        assert_eq!(compare(&[&x, &y], &[&x, &moved]), [Vec::<String>::new(), vec![]]);
    }

    #[test]
    fn a_problem_that_is_replaced_by_another_one_is_not_solved() {
        let (x, y) = (
            problem(1, 1, "Service n/x", "r"),
            problem(2, 8, "Service n/y", "r"),
        );
        let both = [&x, &y];
        assert_eq!(compare(&both, &both), [Vec::<String>::new(), vec![]]);
        assert_eq!(compare(&both, &[])[1].len(), 2);
        // Another one of the same object, or of an object that is not known.
        for new in [
            problem(1, 1, "Service n/x", "other"),
            problem(4, 1, "", "syntax"),
            problem(4, 1, "Service", "no name"),
            file("a.yaml", "cannot be read"),
        ] {
            assert_eq!(compare(&both, &[&new, &y]), [vec![new.to_string()], vec![]]);
        }
        // Of another object or file.
        for new in [
            problem(1, 1, "Service n/z", "r"),
            file("b.yaml", "cannot be read"),
        ] {
            assert_eq!(compare(&both, &[&new, &y])[1], [x.to_string()]);
        }
        let syntax = problem(2, 8, "", "syntax");
        assert_eq!(compare(&[&syntax], &[&y])[1], Vec::<String>::new());
        assert_eq!(compare(&[&syntax], &[&x])[1], [syntax.to_string()]);
        let unreadable = file("a.yaml", "cannot be read");
        assert_eq!(compare(&[&unreadable], &[&x])[1], Vec::<String>::new());
        let other = file("b.yaml", "cannot be read");
        assert_eq!(compare(&[&unreadable], &[&other])[1], [unreadable.to_string()]);
    }

    #[test]
    fn a_problem_of_several_files_is_replaced_by_one_of_the_same_object() {
        let twice = |name: &str, reason: &str| {
            Problem::of_object(
                None,
                Kind::Service,
                &ObjectName::new("n", name),
                reason.to_owned(),
            )
        };
        let x = twice("x", "is in a and in b, c; that of a is used");
        let once = twice("x", "is in a and in b; that of a is used");
        assert_eq!(compare(&[&x], &[&once]), [vec![once.to_string()], vec![]]);
        let y = twice("y", "is in a and in b; that of a is used");
        assert_eq!(compare(&[&x], &[&y])[1], [x.to_string()]);
    }

    #[test]
    fn a_problem_prints_as_one_line() {
        let mut whole = problem(2, 6, "Service shop/dns", "530000 is\nno port");
        whole.place.field = "spec.ports[0].port".to_owned();
        assert_eq!(
            whole.to_string(),
            r"a.yaml: document 2 (line 6): Service shop/dns: spec.ports[0].port: 530000 is\nno port"
        );
        assert_eq!(file("b.yaml", "is empty").to_string(), "b.yaml: is empty");
        assert_eq!(Problem::of_folder("/m: x".to_owned()).to_string(), "/m: x");
    }
}
