// SPDX-License-Identifier: Apache-2.0

// Package grpctest is for tests of gRPC services: a [Network] in memory, whose connections break as
// those of TCP do, and an [Authority] that signs certificates.
package grpctest
