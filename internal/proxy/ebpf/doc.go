// Package ebpf is a layer above a kernel mode: TCP sockets of this machine that connect to a virtual
// address get an endpoint at connect(2), so that no packet is translated. What the layer does not
// translate passes, and the mode below serves it; that has the whole state, so damage, a full map or a
// missing cgroup cost speed, not service.
//
// Enter at [New]. It owns two programs at a cgroup (connect4 and connect6, program/connect.c), their maps,
// and pins in a bpffs. It never translates UDP or SCTP, keeps no connection table, and refuses nothing.
// See DESIGN.md.
package ebpf
