// SPDX-License-Identifier: GPL-2.0

//! Two vhost-net drivers, compared call by call: what a call answers, what it writes, what it leaves behind.
//!
//! [`cases`] are the tables, [`state`] brings a device where a call finds it, [`observe`] looks at it afterwards, [`abi`]
//! has the differences that are meant.

#![forbid(unsafe_code)]

pub mod abi;
pub mod call;
pub mod cases;
pub mod compare;
pub mod ground;
pub mod helper;
pub mod limit;
pub mod message;
pub mod objects;
pub mod observe;
pub mod state;
