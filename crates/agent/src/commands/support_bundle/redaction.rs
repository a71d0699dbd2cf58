//! What is removed from texts before they are in the archive.
//!
//! | where | what is removed |
//! | --- | --- |
//! | everywhere | the credentials of the node, as they are and in base64; texts in the form of keys, tokens and passwords |
//! | documents and messages | what is in quotation marks: any user of the cluster, or another program, may have written it |

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use regex::{Captures, Regex};
use serde_json::Value;

/// What is there instead.
const REMOVED: &str = "[removed]";

/// The forms of secrets. What is in the groups `kept`, before a secret, and `after` stays.
const FORMS: &[&str] = &[
    // Keys and certificates in PEM, also in one line of JSON, and in base64.
    r"(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)",
    r"LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*",
    // JSON Web Tokens.
    r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*",
    // The user in a URL.
    r"(?<kept>://)[^/@\s\x22]+(?<after>@)",
    r"(?i)(?<kept>\bbearer\s+)[A-Za-z0-9._~+/=-]+",
    r"(?i)(?<kept>\bbasic\s+)[A-Za-z0-9+/=_-]{8,}",
    // Also as the end of a name, such as `DB_PASSWORD`.
    r"(?i)(?<kept>(?:token|password|passwd|secret|credentials?|api[_-]?key|access[_-]?key)=)[^\s\x22&,]+",
];

/// Removes secrets from texts.
pub(super) struct Redaction {
    forms: Vec<Regex>,
    /// The longest first: one may contain another.
    values: Vec<String>,
    quoted: Option<Regex>,
}

impl Redaction {
    /// `values`: credentials that are known.
    pub(super) fn new(values: Vec<String>) -> Self {
        let mut values: Vec<String> = values
            .into_iter()
            .flat_map(|value| {
                let encoded = BASE64_STANDARD_NO_PAD.encode(&value);
                [value, encoded]
            })
            .collect();
        values.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        values.dedup();
        Self {
            // A test compiles all of them.
            forms: FORMS.iter().filter_map(|form| Regex::new(form).ok()).collect(),
            values,
            // A text that was cut has no second mark.
            quoted: Regex::new(r#"(?s)"(?:[^"\\]|\\.)*(?:"|\\?\z)|`[^`]*(?:`|\z)"#).ok(),
        }
    }

    /// A text in the notation of a tool or of metrics.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REMOVED);
            }
        }
        for form in &self.forms {
            let removed = form.replace_all(&text, |found: &Captures<'_>| {
                let group = |name| found.name(name).map_or("", |kept| kept.as_str());
                format!("{}{REMOVED}{}", group("kept"), group("after"))
            });
            text = removed.into_owned();
        }
        text
    }

    /// A message for a person.
    pub(super) fn message(&self, message: &str) -> String {
        let text = self.text(message);
        match &self.quoted {
            Some(quoted) => quoted.replace_all(&text, format!("\"{REMOVED}\"")).into_owned(),
            None => text,
        }
    }

    /// All texts of a document, also the names of fields.
    pub(super) fn document(&self, document: &mut Value) {
        match document {
            Value::String(text) => *text = self.message(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.document(item)),
            Value::Object(fields) => {
                *fields = std::mem::take(fields)
                    .into_iter()
                    .map(|(name, mut value)| {
                        self.document(&mut value);
                        (self.message(&name), value)
                    })
                    .collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_valid() {
        let redaction = Redaction::new(Vec::new());
        assert_eq!(redaction.forms.len(), FORMS.len());
        assert!(redaction.quoted.is_some());
    }

    #[test]
    fn forms_of_secrets_are_removed_and_other_texts_stay() {
        let redaction = Redaction::new(Vec::new());
        for (text, expected) in [
            (
                "https://user:pw@10.0.0.1:6443/x",
                "https://[removed]@10.0.0.1:6443/x",
            ),
            ("https://10.0.0.1:6443/x a@b", "https://10.0.0.1:6443/x a@b"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer [removed]"),
            ("a eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJr.c2ln b", "a [removed] b"),
            ("AWS_SECRET_ACCESS_KEY=abc x", "AWS_SECRET_ACCESS_KEY=[removed] x"),
            ("client_secret=abc", "client_secret=[removed]"),
            (
                "Authorization: Basic dTpwYXNzd29yZA==",
                "Authorization: Basic [removed]",
            ),
            ("curl --token=abc&x", "curl --token=[removed]&x"),
            (
                "k -----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- l",
                "k [removed] l",
            ),
            ("k -----BEGIN PRIVATE KEY-----\nMII", "k [removed]"),
            ("data: LS0tLS1CRUdJTiBSU0EgUFJJVkFURQ==", "data: [removed]"),
            (
                r#"-A KUBE-SERVICES -d 10.96.0.1/32 -m comment --comment "shop/token:http cluster IP" -j KUBE-SVC-A"#,
                r#"-A KUBE-SERVICES -d 10.96.0.1/32 -m comment --comment "shop/token:http cluster IP" -j KUBE-SVC-A"#,
            ),
        ] {
            assert_eq!(redaction.text(text), expected);
        }
    }

    #[test]
    fn known_values_are_removed_as_they_are_and_in_base64() {
        let redaction = Redaction::new(vec!["s3cret-value".to_owned(), "s3cret-value-longer".to_owned()]);
        // printf s3cret-value | base64
        assert_eq!(
            redaction.text("a s3cret-value b s3cret-value-longer c czNjcmV0LXZhbHVl d"),
            "a [removed] b [removed] c [removed] d"
        );
    }

    #[test]
    fn quoted_texts_of_documents_are_removed() {
        let redaction = Redaction::new(Vec::new());
        let mut document = serde_json::json!({
            "events": [{"text": r#"kernlink.io/scheduler: invalid value "a \"b\" c": unknown scheduler `a`; known: rr"#}],
            "bearer xyz": 1,
            "cut": r#"invalid value "abc": "ab… (400 bytes)"#,
        });
        redaction.document(&mut document);
        let expected = serde_json::json!({
            "events": [{"text": r#"kernlink.io/scheduler: invalid value "[removed]": unknown scheduler "[removed]"; known: rr"#}],
            "bearer [removed]": 1,
            "cut": r#"invalid value "[removed]": "[removed]""#,
        });
        assert_eq!(document, expected);
    }
}
