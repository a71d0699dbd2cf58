//! Reads the modules of a crate from its files.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};
use syn::{
    Attribute, Item, ItemExternCrate, ItemMod, ItemUse, Macro, Meta, UseTree, VisRestricted,
    ext::IdentExt,
    punctuated::Punctuated,
    visit::{self, Visit},
};

use super::{Module, Written};

/// The modules of the crate with this root file, the root first; `read` returns the text of a file.
pub(super) fn modules(root: &Path, read: &dyn Fn(&Path) -> io::Result<String>) -> Result<Vec<Module>> {
    let mut reader = Reader {
        modules: Vec::new(),
        read,
    };
    let folder = root.parent().unwrap_or(Path::new(""));
    reader.file(Place {
        path: Vec::new(),
        parent: 0,
        file: root.to_owned(),
        folder: folder.to_owned(),
        is_test: false,
    })?;
    Ok(reader.modules)
}

struct Reader<'a> {
    modules: Vec<Module>,
    read: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// A module to read.
struct Place {
    path: Vec<String>,
    parent: usize,
    file: PathBuf,
    /// The folder of the files of its submodules.
    folder: PathBuf,
    is_test: bool,
}

impl Reader<'_> {
    fn file(&mut self, place: Place) -> Result<usize> {
        let file = place.file.clone();
        let text = (self.read)(&file).with_context(|| format!("reading {}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| {
            let line = error.span().start().line;
            anyhow::anyhow!("{}:{line}: {error}", file.display())
        })?;
        let is_test = place.is_test || is_for_tests(&parsed.attrs);
        self.module(Place { is_test, ..place }, &parsed.items)
    }

    fn module(&mut self, place: Place, items: &[Item]) -> Result<usize> {
        let index = self.modules.len();
        let mut collector = Collector {
            module: Module {
                path: place.path.clone(),
                file: place.file.clone(),
                parent: place.parent,
                items: items.iter().filter_map(defined).collect(),
                ..Module::default()
            },
            is_test: place.is_test,
            modules: Vec::new(),
        };
        for item in items {
            collector.visit_item(item);
        }
        let below = collector.modules;
        self.modules.push(collector.module);
        for (declaration, is_test) in below {
            let name = declaration.ident.unraw().to_string();
            let place = Place {
                path: place.path.iter().cloned().chain([name.clone()]).collect(),
                parent: index,
                file: place.file.clone(),
                folder: place.folder.join(&name),
                is_test,
            };
            let child = match &declaration.content {
                Some((_, items)) => self.module(place, items)?,
                None => self.declared(&declaration, place)?,
            };
            self.modules[index].children.insert(name, child);
        }
        Ok(index)
    }

    /// Reads the file of `mod name;`: `name.rs`, `name/mod.rs`, or the file in its `path` attribute.
    fn declared(&mut self, declaration: &ItemMod, place: Place) -> Result<usize> {
        let folder = place.folder.parent().unwrap_or(Path::new("")).to_owned();
        if let Some(path) = declaration.attrs.iter().find_map(path_attribute) {
            let file = place.file.parent().unwrap_or(Path::new("")).join(path);
            let folder = file.parent().unwrap_or(Path::new("")).to_owned();
            return self.file(Place {
                file,
                folder,
                ..place
            });
        }
        let mut name = place.folder.clone().into_os_string();
        name.push(".rs");
        for file in [PathBuf::from(name), place.folder.join("mod.rs")] {
            if (self.read)(&file).is_ok() {
                return self.file(Place { file, ..place });
            }
        }
        bail!(
            "{}:{}: no file of the module {} in {}",
            place.file.display(),
            line(declaration.ident.span()),
            declaration.ident,
            folder.display()
        )
    }
}

/// The file that `#[path = "..."]` names.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    let syn::Expr::Lit(literal) = &pair.value else {
        return None;
    };
    match &literal.lit {
        syn::Lit::Str(text) if pair.path.is_ident("path") => Some(text.value()),
        _ => None,
    }
}

/// The name that an item other than a module or an import defines in its module.
fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.unraw().to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item with these attributes is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<Meta>()
                    .is_ok_and(|predicate| needs_test(&predicate))
    })
}

/// Whether a predicate of `cfg` is false in all builds without tests.
fn needs_test(predicate: &Meta) -> bool {
    match predicate {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, syn::Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

/// Collects what one module names. The reader continues with its submodules.
struct Collector {
    module: Module,
    is_test: bool,
    modules: Vec<(ItemMod, bool)>,
}

impl Collector {
    fn write(&mut self, path: Vec<String>, span: Span, is_import: bool) {
        self.module.written.push(Written {
            path,
            line: line(span),
            is_test: self.is_test,
            is_import,
        });
    }

    fn import(&mut self, name: String, path: Vec<String>, span: Span) {
        self.module.imports.insert(name, path.clone());
        self.write(path, span, true);
    }

    fn use_tree(&mut self, mut prefix: Vec<String>, tree: &UseTree) {
        let text = |name: &syn::Ident| name.unraw().to_string();
        match tree {
            UseTree::Path(path) => {
                prefix.push(text(&path.ident));
                self.use_tree(prefix, &path.tree);
            }
            UseTree::Name(name) if name.ident == "self" => {
                let last = prefix.last().cloned().unwrap_or_default();
                self.import(last, prefix, name.ident.span());
            }
            UseTree::Name(name) => {
                prefix.push(text(&name.ident));
                self.import(text(&name.ident), prefix, name.ident.span());
            }
            UseTree::Rename(rename) => {
                if rename.ident != "self" {
                    prefix.push(text(&rename.ident));
                }
                self.import(text(&rename.rename), prefix, rename.ident.span());
            }
            UseTree::Glob(glob) => {
                self.module.globs.push(prefix.clone());
                self.write(prefix, glob.star_token.span, true);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(prefix.clone(), tree);
                }
            }
        }
    }

    /// Finds paths in tokens: names joined by `::`, optionally with a group of imports after the last `::`.
    fn tokens(&mut self, prefix: &[String], tokens: TokenStream) {
        let mut path = prefix.to_vec();
        let mut span = Span::call_site();
        let mut goes_on = false;
        let mut colons = 0;
        for token in tokens {
            match &token {
                TokenTree::Ident(name) => {
                    if !goes_on {
                        self.end_of_tokens(prefix, &mut path, span);
                    }
                    if path.len() == prefix.len() {
                        span = name.span();
                    }
                    path.push(name.unraw().to_string());
                    goes_on = false;
                }
                TokenTree::Punct(colon) if colon.as_char() == ':' => {
                    colons = if colon.spacing() == Spacing::Joint {
                        1
                    } else {
                        colons + 1
                    };
                    goes_on = colons == 2;
                    if goes_on {
                        colons = 0;
                        if path.is_empty() {
                            path.push(String::new());
                        }
                    }
                    continue;
                }
                TokenTree::Group(group) => {
                    let is_imports = goes_on && group.delimiter() == Delimiter::Brace;
                    let below = if is_imports { path.clone() } else { Vec::new() };
                    self.end_of_tokens(prefix, &mut path, span);
                    self.tokens(&below, group.stream());
                    goes_on = false;
                }
                _ => {
                    self.end_of_tokens(prefix, &mut path, span);
                    goes_on = false;
                }
            }
            colons = 0;
        }
        self.end_of_tokens(prefix, &mut path, span);
    }

    fn end_of_tokens(&mut self, prefix: &[String], path: &mut Vec<String>, span: Span) {
        if path.len() > prefix.len() && path.iter().any(|segment| !segment.is_empty()) {
            self.write(path.clone(), span, false);
        }
        *path = prefix.to_vec();
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        let outside = self.is_test;
        self.is_test |= is_for_tests(attributes(item));
        visit::visit_item(self, item);
        self.is_test = outside;
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.modules.push((module.clone(), self.is_test));
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let prefix = item.leading_colon.map(|_| String::new());
        self.use_tree(prefix.into_iter().collect(), &item.tree);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        let name = item.rename.as_ref().map_or(&item.ident, |(_, name)| name);
        let path = vec![String::new(), item.ident.unraw().to_string()];
        self.import(name.unraw().to_string(), path, item.ident.span());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let leading = path.leading_colon.map(|_| String::new());
        let segments = path
            .segments
            .iter()
            .map(|segment| segment.ident.unraw().to_string());
        let whole = leading.into_iter().chain(segments).collect();
        let span = path.segments.first().map(|segment| segment.ident.span());
        self.write(whole, span.unwrap_or_else(Span::call_site), false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.tokens(&[], call.tokens.clone());
    }

    /// `pub(in crate::a)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn line(span: Span) -> usize {
    span.start().line
}
