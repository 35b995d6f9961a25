package blob

import (
	"bufio"
	"bytes"
	"crypto/md5" //nolint:gosec // the protocol has it
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// s3Server is an object store in memory, with what a Target needs of the protocol.
type s3Server struct {
	url string

	mu      sync.Mutex
	objects map[string][]byte
	sums    map[string]string // x-amz-checksum-sha256 that was given
	uploads map[string]map[int][]byte
	puts    int
	// Faults: of the next so many requests.
	unavailable, cut, flip int
	noSums                 bool // it knows nothing of SHA-256
	auth                   map[string]bool
}

func newS3Server(t *testing.T) *s3Server {
	s := &s3Server{objects: map[string][]byte{}, sums: map[string]string{}, uploads: map[string]map[int][]byte{}, auth: map[string]bool{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "eu-test-1")
	return s
}

func (s *s3Server) fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
}

func (s *s3Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	credential, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), ",")
	s.auth[credential[:strings.LastIndex(credential, "/s3/")+1]] = true
	if s.unavailable > 0 {
		s.unavailable--
		s.fail(w, http.StatusServiceUnavailable, "SlowDown")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != "bucket" {
		s.fail(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && key == "" && q.Has("uploads"):
		s.listUploads(w)
	case r.Method == http.MethodGet && key == "":
		s.list(w, q.Get("prefix"), q.Get("continuation-token"))
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.uploads[key] = map[int][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>%s</Key><UploadId>u</UploadId></InitiateMultipartUploadResult>", key)
	case r.Method == http.MethodPut:
		s.put(w, r, key)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		parts := s.uploads[key]
		var all []byte
		for _, n := range slices.Sorted(maps.Keys(parts)) {
			all = append(all, parts[n]...)
		}
		delete(s.uploads, key)
		s.store(key, all)
		fmt.Fprintf(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>%s</Key><ETag>\"x-2\"</ETag></CompleteMultipartUploadResult>", key)
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		delete(s.uploads, key)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.get(w, r, key)
	}
}

// set changes what the server does.
func (s *s3Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *s3Server) store(key string, data []byte) {
	if s.flip > 0 {
		s.flip--
		data = slices.Clone(data)
		data[len(data)/2] ^= 1
	}
	s.objects[key] = data
}

func (s *s3Server) put(w http.ResponseWriter, r *http.Request, key string) {
	s.puts++
	if s.cut > 0 { // the connection breaks
		s.cut--
		_, _ = io.CopyN(io.Discard, r.Body, 100)
		panic(http.ErrAbortHandler)
	}
	data, err := io.ReadAll(r.Body)
	if err == nil && r.Header.Get("X-Amz-Decoded-Content-Length") != "" {
		data, err = unchunk(data)
	}
	if err != nil {
		s.fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	sum := md5.Sum(data) //nolint:gosec // see above
	if given := r.Header.Get("Content-Md5"); given != "" && given != base64.StdEncoding.EncodeToString(sum[:]) {
		s.fail(w, http.StatusBadRequest, "BadDigest")
		return
	}
	w.Header().Set("ETag", strconv.Quote(hex.EncodeToString(sum[:])))
	if n, err := strconv.Atoi(r.URL.Query().Get("partNumber")); err == nil {
		s.uploads[key][n] = data
		return
	}
	given := r.Header.Get("X-Amz-Checksum-Sha256")
	have := sha256.Sum256(data)
	if given != "" && given != base64.StdEncoding.EncodeToString(have[:]) {
		s.fail(w, http.StatusBadRequest, "BadDigest")
		return
	}
	delete(s.sums, key)
	s.store(key, data)
	if !s.noSums && given != "" {
		have = sha256.Sum256(s.objects[key])
		s.sums[key] = base64.StdEncoding.EncodeToString(have[:])
	}
}

func (s *s3Server) get(w http.ResponseWriter, r *http.Request, key string) {
	data, ok := s.objects[key]
	if !ok {
		s.fail(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	if sum := s.sums[key]; sum != "" {
		w.Header().Set("X-Amz-Checksum-Sha256", sum)
	}
	w.Header().Set("ETag", `"x"`)
	if s.cut > 0 && r.Method == http.MethodGet {
		s.cut--
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = w.Write(data[:len(data)/2])
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", time.Now(), bytes.NewReader(data))
}

type listed struct {
	Key          string
	Size         int
	LastModified string
	ETag         string
}

// list 2 objects at a time.
func (s *s3Server) list(w http.ResponseWriter, prefix, after string) {
	out := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []listed
	}{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if !strings.HasPrefix(key, prefix) || key <= after {
			continue
		}
		if len(out.Contents) == 2 {
			out.IsTruncated, out.NextContinuationToken = true, out.Contents[1].Key
			break
		}
		out.Contents = append(out.Contents, listed{key, len(s.objects[key]), time.Now().UTC().Format(time.RFC3339), `"x"`})
	}
	_ = xml.NewEncoder(w).Encode(out)
}

func (s *s3Server) listUploads(w http.ResponseWriter) {
	fmt.Fprint(w, "<ListMultipartUploadsResult><Bucket>bucket</Bucket>")
	for key := range s.uploads {
		fmt.Fprintf(w, "<Upload><Key>%s</Key><UploadId>u</UploadId><Initiated>%s</Initiated></Upload>", key, time.Now().UTC().Format(time.RFC3339))
	}
	fmt.Fprint(w, "</ListMultipartUploadsResult>")
}

// unchunk a body of signed chunks.
func unchunk(data []byte) ([]byte, error) {
	in := bufio.NewReader(bytes.NewReader(data))
	var out []byte
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		digits, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(digits, 16, 32)
		if err != nil || n == 0 {
			return out, err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk[:n]...)
	}
}
