// The cluster's DNS server: CoreDNS with the plugins that a cluster's zone needs and no others.
//
// The full CoreDNS links the clients of every large cloud, which triples the time to build it.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which plugins see a query; it is fixed when the server is built.
	dnsserver.Directives = []string{
		"reload", "health", "ready", "errors", "cache", "template", "hosts", "kubernetes", "forward",
	}
	coremain.Run()
}
