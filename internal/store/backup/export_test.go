package backup

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"io"
)

// Frames is what is inside a backup.
func Frames(backup []byte) []byte {
	unzip, err := gzip.NewReader(bytes.NewReader(backup[len(magic) : len(backup)-sha256.Size]))
	if err != nil {
		panic(err)
	}
	out, err := io.ReadAll(unzip)
	if err != nil {
		panic(err)
	}
	return out
}

// Packed undoes Frames, but for the checksum.
func Packed(frames []byte) []byte {
	var b bytes.Buffer
	b.WriteString(magic)
	zip := gzip.NewWriter(&b)
	_, _ = zip.Write(frames)
	_ = zip.Close()
	return b.Bytes()
}
