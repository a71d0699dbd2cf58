//! The parameters of questions.

/// The value of a parameter of a query. Parameters are not encoded: names, addresses and ports need no escapes.
///
/// # Errors
/// A parameter that does not exist.
pub(super) fn parameters<'a>(
    query: &'a str,
    valid: &[&'static str],
) -> Result<Vec<(&'static str, &'a str)>, String> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match valid.iter().find(|known| **known == name) {
                Some(known) => Ok((*known, value)),
                None => Err(format!(
                    "the parameter {name:?} is not valid; valid: {}",
                    valid.join(", ")
                )),
            }
        })
        .collect()
}
