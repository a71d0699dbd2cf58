//! Compressed answers.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use hyper::header::HeaderValue;

/// The value of `Accept-Encoding` in requests for lists. The server compresses those of more than 128 KiB.
pub(super) const ACCEPTED: HeaderValue = HeaderValue::from_static("gzip");

/// The content of a body with this `Content-Encoding`, which has at most `max` bytes.
///
/// # Errors
/// What is invalid.
pub(super) fn decode(encoding: Option<&HeaderValue>, body: Vec<u8>, max: usize) -> Result<Vec<u8>, String> {
    match encoding.map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(body),
        Some(b"gzip") => {
            let mut content = Vec::new();
            let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
            let result = MultiGzDecoder::new(&*body).take(limit).read_to_end(&mut content);
            result.map_err(|error| format!("an answer cannot be decompressed: {error}"))?;
            if content.len() > max {
                return Err(format!("an answer has more than {max} bytes"));
            }
            Ok(content)
        }
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            Err(format!(
                "an answer has the Content-Encoding {other:?}; known: gzip, identity"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn compressed(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compressed_and_other_bodies_are_decoded() {
        let content = b"{\"items\": []}".repeat(100);
        let gzip = HeaderValue::from_static("gzip");
        let body = compressed(&content);
        assert_eq!(
            decode(Some(&gzip), body.clone(), content.len()),
            Ok(content.clone())
        );
        let two = [&body[..], &body].concat();
        assert_eq!(decode(Some(&gzip), two, 2600), Ok(content.repeat(2)));
        assert_eq!(decode(None, content.clone(), 0), Ok(content.clone()));
        let identity = HeaderValue::from_static("identity");
        assert_eq!(decode(Some(&identity), content.clone(), 0), Ok(content));
    }

    #[test]
    fn a_body_that_is_too_long_cut_or_not_compressed_is_an_error() {
        let gzip = HeaderValue::from_static("gzip");
        let body = compressed(&vec![0; 1 << 20]);
        let error = |encoding: &HeaderValue, body: &[u8], max| {
            decode(Some(encoding), body.to_vec(), max).unwrap_err()
        };
        assert_eq!(error(&gzip, &body, 1000), "an answer has more than 1000 bytes");
        let cut = body.get(..body.len() / 2).unwrap();
        assert!(error(&gzip, cut, 2 << 20).starts_with("an answer cannot be decompressed: "));
        assert!(error(&gzip, b"{}", 1000).starts_with("an answer cannot be decompressed: "));
        let other = HeaderValue::from_static("br");
        assert!(error(&other, b"", 1000).contains("\"br\""));
    }
}
