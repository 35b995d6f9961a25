package blob

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// partBytes of what is uploaded at once. What is larger is sent in parts of that size, and has its name when all are there.
	partBytes = 128 << 20
	// stallTimeout is how long an object store may take to begin an answer.
	stallTimeout = time.Minute
	// uploadAttempts of one Put. Who asks tries again later.
	uploadAttempts = 3
)

// S3 is a Target in a bucket of an object store.
type S3 struct {
	client         *minio.Client
	bucket, prefix string // prefix is empty, or ends in a slash
	name           string
	partBytes      int64
}

var _ Target = (*S3)(nil)

func openS3(u *url.URL) (Target, error) {
	if u.User != nil {
		return nil, errors.New("an s3 URL has no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use the files of AWS")
	}
	if u.Host == "" || u.Fragment != "" {
		return nil, errors.New("want s3://BUCKET/PREFIX?endpoint=HOST:PORT&region=NAME")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("the options of the s3 URL: %w", err)
	}
	for key := range query {
		if !slices.Contains([]string{"endpoint", "region", "path-style"}, key) {
			return nil, fmt.Errorf("the option %q of an s3 URL is not known: want endpoint, region or path-style; credentials are never in a URL", key)
		}
	}
	s := &S3{bucket: u.Host, partBytes: partBytes, prefix: strings.Trim(path.Clean("/"+u.Path), "/")}
	if s.prefix != "" {
		s.prefix += "/"
	}
	region := cmp.Or(query.Get("region"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	host, insecure := strings.CutPrefix(cmp.Or(query.Get("endpoint"), "s3.amazonaws.com"), "http://")
	host = strings.TrimSuffix(strings.TrimPrefix(host, "https://"), "/")
	lookup := minio.BucketLookupAuto
	if text := query.Get("path-style"); text != "" {
		style, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("path-style=%q of an s3 URL: true or false", text)
		}
		lookup = minio.BucketLookupDNS
		if style {
			lookup = minio.BucketLookupPath
		}
	}
	transport, err := minio.DefaultTransport(!insecure)
	if err != nil {
		return nil, err
	}
	transport.ResponseHeaderTimeout = stallTimeout
	s.client, err = minio.New(host, &minio.Options{
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}},
		}),
		Secure: !insecure, Transport: transport, Region: region, BucketLookup: lookup,
		TrailingHeaders: true, // required where a checksum is given, which is sent in the header all the same
		// The library rewinds the body for another attempt while the one before may still be read: see upload.
		MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("the endpoint of the s3 URL: %w", err)
	}
	s.name = "s3://" + s.bucket + "/" + strings.TrimSuffix(s.prefix, "/")
	return s, nil
}

// String implements Target.
func (s *S3) String() string { return s.name }

func (s *S3) wrap(name string, err error) error {
	if err == nil {
		return nil
	}
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		err = ErrNotFound
	}
	return fmt.Errorf("%s: %s: %w", s.name, name, err)
}

// Put implements Target. The store compares the SHA-256 or the MD5 of what it received; then it is asked for what it has, or
// that is read back where it cannot tell.
func (s *S3) Put(ctx context.Context, name string, from io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	key := s.prefix + name
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream", SendContentMd5: true}
	if opts.DisableMultipart = size <= s.partBytes; opts.DisableMultipart {
		opts.UserMetadata = map[string]string{"x-amz-checksum-sha256": base64.StdEncoding.EncodeToString(sum[:])}
	} else {
		opts.PartSize = uint64(s.partBytes)
		_ = s.client.RemoveIncompleteUpload(ctx, s.bucket, key) // of an upload that was cut short
	}
	if err := s.upload(ctx, key, from, size, opts); err != nil {
		return s.wrap(name, err)
	}
	err := s.verify(ctx, name, sum)
	var wrong *ChecksumError
	if errors.As(err, &wrong) {
		err = errors.Join(err, s.Delete(ctx, name))
	}
	return err
}

// upload tries some times, each with a reader of its own.
func (s *S3) upload(ctx context.Context, key string, from io.ReaderAt, size int64, opts minio.PutObjectOptions) error {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 200 * time.Millisecond, Last: 2 * time.Second, Jitter: 0.5}}
	for attempt := 1; ; attempt++ {
		_, err := s.client.PutObject(ctx, s.bucket, key, io.NewSectionReader(from, 0, size), size, opts)
		if err == nil || attempt == uploadAttempts || ctx.Err() != nil {
			return err
		}
		backoff.Sleep(ctx, retry.Next())
	}
}

func (s *S3) verify(ctx context.Context, name string, want [sha256.Size]byte) error {
	info, err := s.client.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return s.wrap(name, err)
	}
	if info.ChecksumSHA256 == base64.StdEncoding.EncodeToString(want[:]) {
		return nil
	}
	h := sha256.New()
	if err := s.Get(ctx, name, h); err != nil {
		return err
	}
	return compare(s.name, name, h, want)
}

// Get implements Target.
func (s *S3) Get(ctx context.Context, name string, w io.Writer) error {
	if err := checkName(name); err != nil {
		return err
	}
	body, err := s.client.GetObject(ctx, s.bucket, s.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return s.wrap(name, err)
	}
	defer body.Close()
	_, err = io.Copy(w, body)
	return s.wrap(name, err)
}

// List implements Target.
func (s *S3) List(ctx context.Context, prefix string) ([]Info, error) {
	var out []Info
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, fmt.Errorf("%s: list: %w", s.name, o.Err)
		}
		if name := strings.TrimPrefix(o.Key, s.prefix); checkName(name) == nil {
			out = append(out, Info{Name: name, Size: o.Size, Modified: o.LastModified})
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Delete implements Target.
func (s *S3) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := s.client.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{})
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return nil
	}
	return s.wrap(name, err)
}
