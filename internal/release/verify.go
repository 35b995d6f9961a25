package release

import (
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// Report is what Verify found.
type Report struct {
	// Version and Commit that the statements name; empty if none could be read.
	Version string `json:"version,omitempty"`
	Commit  string `json:"commit,omitempty"`
	// Builder that the statements name. Without a signature it is a claim.
	Builder string `json:"builder,omitempty"`
	// Signed: every statement is signed by the key. False without a key.
	Signed bool   `json:"signed"`
	Files  []File `json:"files"`
}

// File of a release.
type File struct {
	Name string `json:"name"`
	// Bytes is its size; 0 if it could not be read.
	Bytes int64 `json:"bytes"`
	// Problem says what is wrong and what to do; empty: it is as it was released.
	Problem string `json:"problem,omitempty"`
}

// Err is nil if every file is as it was released, else names those that are not.
func (r *Report) Err() error {
	var bad []string
	for _, f := range r.Files {
		if f.Problem != "" {
			bad = append(bad, "  "+f.Name+": "+f.Problem)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return &problem.Error{
		Code: problem.ReleaseInvalid,
		Err:  fmt.Errorf("%d of %d files did not pass:\n%s", len(bad), len(r.Files), strings.Join(bad, "\n")),
		Hint: "use none of these files until they pass",
	}
}

// Verify checks the files in a folder by its SHA256SUMS and their statements, and the
// signatures if key is not nil. path may also be one of the files: then that one alone is
// checked. The Report says what was found; an error is returned only if nothing could be
// checked. It reads whole files.
func Verify(path string, key crypto.PublicKey) (*Report, error) {
	dir, only := path, ""
	if info, err := os.Stat(path); err != nil {
		return nil, invalid(fmt.Errorf("verify a release: %w", err), "name the folder with the files of the release, or one of them")
	} else if !info.IsDir() {
		dir, only = filepath.Split(path)
		dir = filepath.Clean(dir)
	}
	sums, err := readSums(dir)
	if err != nil {
		return nil, err
	}
	v := verifier{dir: dir, key: key, report: &Report{Signed: key != nil}}
	known := map[string]bool{SumsName: true}
	for _, s := range sums {
		known[s.Name], known[s.Name+SignedSuffix], known[s.Name+UnsignedSuffix] = true, true, true
		if only == "" || only == s.Name {
			v.file(s)
		}
	}
	switch {
	case only == "":
		err = v.unlisted(known)
	case len(v.report.Files) == 0:
		v.add(File{Name: only, Problem: "SHA256SUMS beside it does not list it: name a file of the release, not a statement, and download SHA256SUMS of the same release"})
	}
	return v.report, err
}

func invalid(err error, hint string) error {
	return &problem.Error{Code: problem.ReleaseInvalid, Err: err, Hint: hint}
}

func readSums(dir string) ([]Sum, error) {
	file := filepath.Join(dir, SumsName)
	data, err := readBounded(file, maxSums)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid(fmt.Errorf("%s: there is no such file", file), "download it into the folder of the files that it lists; make release writes it")
	}
	if err != nil {
		return nil, invalid(err, "download it again")
	}
	sums, err := ParseSums(data)
	if err != nil {
		return nil, invalid(fmt.Errorf("%s: %w", file, err), "download it again")
	}
	return sums, nil
}

// readBounded reads a regular file, if it is not larger than a limit in bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, and at most %d are expected", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}

type verifier struct {
	dir    string
	key    crypto.PublicKey
	report *Report
	first  string // the file whose statement gave Version, Commit and Builder
}

func (v *verifier) add(f File) { v.report.Files = append(v.report.Files, f) }

// file checks one file.
func (v *verifier) file(s Sum) {
	f := File{Name: s.Name}
	if err := v.check(s, &f); err != nil {
		f.Problem = err.Error()
		v.report.Signed = false
	}
	v.add(f)
}

func (v *verifier) check(s Sum, f *File) error {
	path := filepath.Join(v.dir, s.Name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it is listed in SHA256SUMS and not there: download it; to check one file alone, give --verify its path")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file: download it again")
	}
	f.Bytes = info.Size()
	d, err := DigestFile(path)
	if err != nil {
		return err
	}
	if d != s.Digest {
		return fmt.Errorf("its SHA-256 is %s, in SHA256SUMS it is %s: download it again", d, s.Digest)
	}
	statement, err := v.statement(s.Name)
	if err != nil {
		return err
	}
	said, err := statement.digestOf(s.Name)
	if err != nil {
		return fmt.Errorf("its statement is not about it (%w): download the statement again", err)
	}
	if said != d {
		return fmt.Errorf("its SHA-256 is %s, in its statement it is %s: file and statement are of two builds; download both again", d, said)
	}
	return v.same(s.Name, statement)
}

// statement about a file: the signed one, if a key is given.
func (v *verifier) statement(name string) (*Statement, error) {
	signed, plain := name+SignedSuffix, name+UnsignedSuffix
	data, err := readBounded(filepath.Join(v.dir, signed), maxStatement*2)
	if err == nil {
		e, err := parseEnvelope(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: download it again", signed, err)
		}
		if v.key != nil {
			if err := e.verify(v.key); err != nil {
				return nil, fmt.Errorf("%s: %w (it names key %.64s): give --key the public key of whoever built the release", signed, err, e.Signatures[0].KeyID)
			}
		}
		return parsed(signed, e.Payload)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: download it again", err)
	}
	data, err = readBounded(filepath.Join(v.dir, plain), maxStatement)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("its statement, %s or %s, is not there: download it", signed, plain)
	case err != nil:
		return nil, fmt.Errorf("%w: download it again", err)
	case v.key != nil:
		return nil, fmt.Errorf("its statement %s is not signed: get %s, or leave out --key and trust whoever gave you these files", plain, signed)
	}
	return parsed(plain, data)
}

func parsed(name string, data []byte) (*Statement, error) {
	s, err := ParseStatement(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: download it again, or verify with the version that you verify", name, err)
	}
	return s, nil
}

// same checks that all files are of one release.
func (v *verifier) same(name string, s *Statement) error {
	version, commit := s.Predicate.BuildDefinition.ExternalParameters.Version, s.commit()
	builder := s.Predicate.RunDetails.Builder.ID
	r := v.report
	if v.first == "" {
		v.first, r.Version, r.Commit, r.Builder = name, version, commit, builder
		return nil
	}
	if version != r.Version || commit != r.Commit || builder != r.Builder {
		return fmt.Errorf("it is of version %s, commit %s, by %s, and %s of version %s, commit %s, by %s: do not mix releases",
			version, commit, builder, v.first, r.Version, r.Commit, r.Builder)
	}
	return nil
}

// unlisted files are not of the release. Folders are no files.
func (v *verifier) unlisted(known map[string]bool) error {
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() && !known[e.Name()] {
			v.add(File{Name: e.Name(), Problem: "it is not listed in SHA256SUMS: move it elsewhere"})
			v.report.Signed = false
		}
	}
	return nil
}
