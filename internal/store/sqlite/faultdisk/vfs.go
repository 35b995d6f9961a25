package faultdisk

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// The VFS is a copy of the system's with other functions for opening and deleting.
// An open file is the system's, but for its table of methods: a copy in which
// write, truncate, sync and close are ours. All that SQLite sees of these
// structures lies outside Go's heap, as it keeps addresses as numbers.

// vfsName is under what the VFS is known to SQLite.
const vfsName = "faultdisk"

type (
	openFunc   = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	deleteFunc = func(tls *libc.TLS, vfs, name uintptr, syncFolder int32) int32
	closeFunc  = func(tls *libc.TLS, file uintptr) int32
	writeFunc  = func(tls *libc.TLS, file, data uintptr, size int32, offset int64) int32
	resizeFunc = func(tls *libc.TLS, file uintptr, size int64) int32
)

// watched are the disks, by their folders.
var watched = struct {
	sync.Mutex
	disks map[string]*Disk
}{disks: map[string]*Disk{}}

// open are the files of disks that SQLite has open, by the addresses of its
// structures.
var open = struct {
	sync.Mutex
	files map[uintptr]handle
	// tables of methods, by the address of the system's.
	tables map[uintptr]uintptr
}{files: map[uintptr]handle{}, tables: map[uintptr]uintptr{}}

// handle is an open file of a disk.
type handle struct {
	disk   *Disk
	path   string
	system uintptr // its table of methods
}

// system is the VFS underneath; it is set once.
var system sqlite3.Tsqlite3_vfs

// install makes the VFS the one that SQLite uses by default. Files
// outside the folders of disks are the system's entirely.
var install = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	below := sqlite3.Xsqlite3_vfs_find(tls, 0)
	if below == 0 {
		return fmt.Errorf("fault disk: SQLite has no VFS")
	}
	system = *at[sqlite3.Tsqlite3_vfs](below)
	name, err := libc.CString(vfsName)
	if err != nil {
		return fmt.Errorf("fault disk: %w", err)
	}
	ours := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(system)))
	if ours == 0 {
		return fmt.Errorf("fault disk: no memory")
	}
	v := at[sqlite3.Tsqlite3_vfs](ours)
	*v = system
	v.FpNext, v.FzName = 0, name
	v.FxOpen, v.FxDelete = pointer(xOpen), pointer(xDelete)
	if code := sqlite3.Xsqlite3_vfs_register(tls, ours, 1); code != sqlite3.SQLITE_OK {
		return fmt.Errorf("fault disk: SQLite takes no VFS: code %d", code)
	}
	return nil
})

// at is what lies at an address outside Go's heap.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// pointer makes a function callable by SQLite, which keeps functions as the
// address of their closure. f must be a function of the package, as nothing else
// keeps a closure alive.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// function is the reverse of pointer.
func function[F any](address uintptr) F { return *(*F)(unsafe.Pointer(&address)) }

// diskOf finds the disk of a path.
func diskOf(path string) *Disk {
	watched.Lock()
	defer watched.Unlock()
	return watched.disks[filepath.Dir(path)]
}

func handleOf(file uintptr) handle {
	open.Lock()
	defer open.Unlock()
	return open.files[file]
}

func xOpen(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	var disk *Disk
	path := ""
	if name != 0 { // else a temporary file
		path = libc.GoString(name)
		disk = diskOf(path)
	}
	_, missing := os.Lstat(path)
	code := function[openFunc](system.FxOpen)(tls, vfs, name, file, flags, outFlags)
	if code != sqlite3.SQLITE_OK || disk == nil {
		return code
	}
	const journals = sqlite3.SQLITE_OPEN_MAIN_JOURNAL | sqlite3.SQLITE_OPEN_SUPER_JOURNAL | sqlite3.SQLITE_OPEN_WAL
	if err := disk.opened(path, missing == nil, flags&journals != 0); err != nil {
		_ = function[closeFunc](at[sqlite3.Tsqlite3_io_methods](at[sqlite3.Tsqlite3_file](file).FpMethods).FxClose)(tls, file)
		at[sqlite3.Tsqlite3_file](file).FpMethods = 0
		return sqlite3.SQLITE_CANTOPEN
	}
	open.Lock()
	defer open.Unlock()
	methods := &at[sqlite3.Tsqlite3_file](file).FpMethods
	open.files[file] = handle{disk: disk, path: path, system: *methods}
	*methods = tableFor(tls, *methods)
	return sqlite3.SQLITE_OK
}

// tableFor is our version of one of the system's tables of methods. It is kept for
// good: there are as many as the system has ways to lock.
func tableFor(tls *libc.TLS, below uintptr) uintptr {
	if table := open.tables[below]; table != 0 {
		return table
	}
	table := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
	if table == 0 {
		panic("fault disk: no memory")
	}
	m := at[sqlite3.Tsqlite3_io_methods](table)
	*m = *at[sqlite3.Tsqlite3_io_methods](below)
	m.FxClose, m.FxWrite = pointer(xClose), pointer(xWrite)
	m.FxTruncate, m.FxSync = pointer(xTruncate), pointer(xSync)
	open.tables[below] = table
	return table
}

func (h handle) methods() *sqlite3.Tsqlite3_io_methods {
	return at[sqlite3.Tsqlite3_io_methods](h.system)
}

func xClose(tls *libc.TLS, file uintptr) int32 {
	open.Lock()
	h := open.files[file]
	delete(open.files, file)
	open.Unlock()
	return function[closeFunc](h.methods().FxClose)(tls, file)
}

func xWrite(tls *libc.TLS, file, data uintptr, size int32, offset int64) int32 {
	h := handleOf(file)
	code := function[writeFunc](h.methods().FxWrite)(tls, file, data, size, offset)
	if code == sqlite3.SQLITE_OK {
		h.disk.wrote(h.path, offset, append([]byte(nil), unsafe.Slice(at[byte](data), size)...))
	}
	return code
}

func xTruncate(tls *libc.TLS, file uintptr, size int64) int32 {
	h := handleOf(file)
	code := function[resizeFunc](h.methods().FxTruncate)(tls, file, size)
	if code == sqlite3.SQLITE_OK {
		h.disk.truncated(h.path, size)
	}
	return code
}

// xSync syncs the simulated disk; the real one does not matter.
func xSync(_ *libc.TLS, file uintptr, _ int32) int32 {
	if h := handleOf(file); !h.disk.sync(h.path) {
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	return sqlite3.SQLITE_OK
}

func xDelete(tls *libc.TLS, vfs, name uintptr, syncFolder int32) int32 {
	path := libc.GoString(name)
	code := function[deleteFunc](system.FxDelete)(tls, vfs, name, syncFolder)
	if disk := diskOf(path); disk != nil && code == sqlite3.SQLITE_OK {
		disk.deleted(path, syncFolder != 0)
	}
	return code
}
