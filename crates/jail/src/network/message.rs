//! Netlink messages as bytes: headers, attributes, and attributes within attributes. It must never
//! know what they mean.

/// Every message begins with this many bytes.
pub(super) const HEADER_BYTES: usize = 16;

/// The kernel is to do something.
pub(super) const REQUEST: u16 = 1;
/// It is to say that it did.
pub(super) const ACKNOWLEDGE: u16 = 4;
/// It is to send all there is.
pub(super) const DUMP: u16 = 0x300;
/// What is there already is replaced.
pub(super) const REPLACE: u16 = 0x100;
/// What is there already is an error.
pub(super) const EXCLUSIVE: u16 = 0x200;
/// What is not there is made.
pub(super) const CREATE: u16 = 0x400;
/// It comes after what is there.
pub(super) const APPEND: u16 = 0x800;

/// The type of an answer that carries an error, or 0 for success.
pub(super) const ERROR: u16 = 2;
/// The type of the last answer of several.
pub(super) const DONE: u16 = 3;

/// An attribute that consists of attributes.
const NESTED: u16 = 0x8000;

/// Messages that are sent together.
#[derive(Default)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    count: u32,
}

impl Messages {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds a message: its own header, then its attributes.
    pub(super) fn add(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        attributes: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        // The kernel puts the sender in itself.
        self.bytes.extend([0; 4]);
        self.bytes.extend(header);
        self.count += 1;
        attributes(self);
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let start = self.begin(kind);
        self.bytes.extend(value);
        self.end(start);
    }

    pub(super) fn text(&mut self, kind: u16, value: &str) {
        let start = self.begin(kind);
        self.bytes.extend(value.as_bytes());
        self.bytes.push(0);
        self.end(start);
    }

    /// A number in the order of the network.
    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(super) fn nested(&mut self, kind: u16, attributes: impl FnOnce(&mut Self)) {
        let start = self.begin(kind | NESTED);
        attributes(self);
        self.end(start);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A message that arrived: its type and what follows its header.
pub(super) struct Received<'a> {
    pub kind: u16,
    pub body: &'a [u8],
}

/// The messages in what arrived. Bytes that are not a message end them.
pub(super) fn received(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Received { kind, body })
    })
}

/// The attributes in some bytes. Bytes that are not an attribute end them.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of one attribute.
pub(super) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The error that an answer carries; 0 for success. `None` if it carries none.
pub(super) fn error_in(message: &Received<'_>) -> Option<i32> {
    match message.kind {
        ERROR | DONE => Some(i32::from_ne_bytes(*message.body.first_chunk()?).wrapping_neg()),
        _ => None,
    }
}
