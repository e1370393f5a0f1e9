//! Conversations with a real server and real sandboxes, when everything goes wrong: the server is
//! killed in the middle of turns, and there are twenty times more sessions than may be alive.

mod crashes;
mod many_sessions;
