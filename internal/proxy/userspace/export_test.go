package userspace

// Portable makes the mode carry TCP as on systems without an event loop.
func Portable(o Options) Options {
	o.portable = true
	return o
}
