//! The formats of lists and watches. The server chooses one of those that are accepted, and names it in the answer.

use hyper::HeaderMap;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use kernlink_kubernetes::Converter;
use kernlink_kubernetes::watch::protobuf::{self, Frames};
use kernlink_kubernetes::watch::{self, Event, Page, Status, Unreadable};
use kernlink_services::Kind;

use super::lines::Lines;

/// The formats that are accepted, as in client-go: an object of which the server has no protobuf is sent as JSON.
pub(super) const ACCEPTED: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");

/// JSON only.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Protobuf,
}

impl Format {
    /// The format of an answer with these headers. JSON if they name another one or none, such as those of a proxy.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        // Parameters follow, such as that of a watch.
        let media_type = content_type.split(|byte| *byte == b';').next();
        let media_type = media_type.unwrap_or_default().trim_ascii();
        if media_type.eq_ignore_ascii_case(b"application/vnd.kubernetes.protobuf") {
            Self::Protobuf
        } else {
            Self::Json
        }
    }

    pub(super) fn read_page(
        self,
        kind: Kind,
        body: Vec<u8>,
        converter: &mut Converter,
    ) -> Result<Page, Unreadable> {
        match self {
            Self::Json => watch::read_page(kind, &body, converter),
            Self::Protobuf => protobuf::read_page(kind, body.into(), converter),
        }
    }

    pub(super) fn read_status(self, code: u16, body: Vec<u8>) -> Status {
        match self {
            Self::Json => watch::read_status(code, &body),
            Self::Protobuf => protobuf::read_status(code, body.into()),
        }
    }

    /// The events of a watch, of which nothing was received.
    pub(super) fn events(self) -> Events {
        match self {
            Self::Json => Events::Json(Lines::default()),
            Self::Protobuf => Events::Protobuf(Frames::new()),
        }
    }
}

/// The events of a watch that is received in parts.
#[derive(Debug)]
pub(super) enum Events {
    Json(Lines),
    Protobuf(Frames),
}

impl Events {
    pub(super) fn push(&mut self, part: &Bytes) {
        match self {
            Self::Json(lines) => lines.push(part),
            Self::Protobuf(frames) => frames.push(part),
        }
    }

    /// The next event that is complete. `None` until more was received.
    pub(super) fn next(
        &mut self,
        kind: Kind,
        converter: &mut Converter,
    ) -> Option<Result<Event, Unreadable>> {
        match self {
            Self::Json(lines) => {
                let line = lines.next().map_err(|_| Unreadable {
                    reason: "an event is too long".to_owned(),
                });
                let line = line.transpose()?;
                Some(line.and_then(|line| watch::read_event(kind, line, converter)))
            }
            Self::Protobuf(frames) => {
                let frame = frames.next_frame().transpose()?;
                Some(frame.and_then(|frame| protobuf::read_event(kind, frame, converter)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_that_of_the_content_type() {
        let format = |content_type: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            Format::of(&headers)
        };
        for content_type in [
            "application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;stream=watch",
            "Application/vnd.Kubernetes.protobuf ; stream=watch",
        ] {
            assert_eq!(format(content_type), Format::Protobuf);
        }
        for content_type in [
            "application/json",
            "text/html",
            "",
            "application/vnd.kubernetes.protobuf2",
        ] {
            assert_eq!(format(content_type), Format::Json);
        }
        assert_eq!(Format::of(&HeaderMap::new()), Format::Json);
    }
}
