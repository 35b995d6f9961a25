package app

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// adminLife of the certificate in the kubeconfig; it is issued again at every start.
const adminLife = 365 * 24 * time.Hour

// serverCertificate names everything by which clients may call the server:
// Kubernetes' own names, this machine's, its addresses, those that are configured, and
// the first address of each service range, where the Service "kubernetes" is.
func serverCertificate(cfg ControlPlaneConfig, ca *identity.Authority, listen net.Addr, services []netip.Prefix) (identity.Pair, error) {
	names := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + ClusterDomain,
	}
	if host, err := os.Hostname(); err == nil {
		names = append(names, strings.ToLower(host))
	}
	addrs := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if tcp, ok := listen.(*net.TCPAddr); ok && !tcp.IP.IsUnspecified() {
		addrs = append(addrs, tcp.IP)
	} else if own, err := net.InterfaceAddrs(); err == nil {
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				addrs = append(addrs, n.IP)
			}
		}
	}
	more := cfg.TLSNames
	if cfg.AdvertiseAddress != "" {
		more = append([]string{cfg.AdvertiseAddress}, more...)
	}
	for _, name := range more {
		if addr, err := netip.ParseAddr(name); err == nil {
			addrs = append(addrs, addr.WithZone("").AsSlice())
			continue
		}
		if problems := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(problems) > 0 {
			return identity.Pair{}, &problem.Error{
				Code: problem.Usage, Err: fmt.Errorf("--tls-san or --advertise-address: %q is no DNS name and no IP address", name),
				Hint: "give names and addresses without a port, separated by commas",
			}
		}
		names = append(names, strings.ToLower(name))
	}
	for _, p := range services {
		addrs = append(addrs, p.Masked().Addr().Next().AsSlice())
	}
	return ca.IssueServer("proxima", names, addrs)
}

// writeKubeconfig gives the owner of the data directory access as administrator.
func writeKubeconfig(path, server string, ca *identity.Authority) error {
	subject, err := identity.SubjectFor(identity.Admin, "admin")
	if err != nil {
		return err
	}
	pair, err := ca.IssueClient(subject, adminLife)
	if err != nil {
		return fmt.Errorf("certificate for the kubeconfig: %w", err)
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["proxima"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca.PEM()}
	cfg.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	cfg.Contexts["proxima"] = &clientcmdapi.Context{Cluster: "proxima", AuthInfo: "admin", Namespace: "default"}
	cfg.CurrentContext = "proxima"
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}
