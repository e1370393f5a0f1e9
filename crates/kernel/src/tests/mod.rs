//! Tests of whole decisions, by what they are about. Each drives the kernel through [`rig::Rig`],
//! which audits it after every event.

mod rig;
mod smoke;
