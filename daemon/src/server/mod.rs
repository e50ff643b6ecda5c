//! Towards clients: the socket, and two tasks per connection.

pub mod connection;
pub mod listener;
