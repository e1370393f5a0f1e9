//! The maker, and the runtime made of it, against an engine that does what a test says: what a real
//! one does once in a thousand times happens here every time.

mod fake_engine;
mod framing;
mod image_fetch;
mod lifecycle;
