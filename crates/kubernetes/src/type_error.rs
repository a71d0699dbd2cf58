//! Type errors of serde in plain words.

/// `expected a whole number, found the text "eighty"` for `invalid type: string "eighty", expected i32`. Other messages stay.
pub(crate) fn plain(message: &str) -> String {
    let rest = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    // The value may contain the words too, and the expectation does not.
    let Some((found, expected)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    format!("expected {}, found {}", expectation(expected), value(found))
}

/// What a type accepts.
fn expectation(expected: &str) -> &str {
    match expected {
        "a string" | "a borrowed string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "IntOrString" | "enum IntOrString" => "a whole number or a text",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "f32" | "f64" => "a number",
        // The name of a type of the API.
        name if name.starts_with("struct ") || name.starts_with(|first: char| first.is_ascii_uppercase()) => {
            "an object"
        }
        other => other,
    }
}

/// The value that was found.
fn value(found: &str) -> String {
    let of = |kind: &str| found.strip_prefix(kind).map(|value| value.trim_matches('`'));
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the text {text}");
    }
    if let Some(number) = of("integer ").or_else(|| of("floating point ")) {
        return format!("the number {number}");
    }
    if let Some(bool) = of("boolean ") {
        return bool.to_owned();
    }
    match found {
        "null" | "unit value" | "Option value" => "null".to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_errors_have_no_words_of_rust() {
        for (message, expected) in [
            (
                "invalid type: string \"eighty\", expected i32",
                "expected a whole number, found the text \"eighty\"",
            ),
            (
                "invalid value: integer `70000`, expected u16",
                "expected a whole number of 0 or more, found the number 70000",
            ),
            (
                "invalid type: floating point `1.5`, expected a string",
                "expected a text, found the number 1.5",
            ),
            (
                "invalid type: boolean `true`, expected a sequence",
                "expected a list, found true",
            ),
            (
                "invalid type: unit value, expected a boolean",
                "expected true or false, found null",
            ),
            (
                "invalid type: sequence, expected ServiceSpec",
                "expected an object, found a list",
            ),
            (
                "invalid type: string \"a, expected b\", expected a map",
                "expected an object, found the text \"a, expected b\"",
            ),
            ("missing field `kind`", "missing field `kind`"),
        ] {
            assert_eq!(plain(message), expected);
        }
    }
}
