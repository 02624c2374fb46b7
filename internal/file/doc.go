// SPDX-License-Identifier: Apache-2.0

// Package file opens, replaces, locks and gives away files.
//
// [Open] refuses what is not a regular file. [Replace] replaces a file so that a crash leaves the
// old or the new one. [Lock] gives a file to one process at a time.
//
// [Give] and [MkdirAll] give files that root creates on behalf of a user to that user: otherwise a
// user of "sudo make demo" could not remove or change its files. SUDO_UID and SUDO_GID name the
// user. A folder of MkdirAll becomes the user's; a file does if its folder is the user's, so that
// files in root's own folders keep their owner. Without sudo, or without root privileges, they
// change no owner.
package file
