// Follows the objects of a cluster as kube-proxy does on many nodes, each with a connection of its own, and keeps none of them.
//
// It prints `begun TIME` at its start, `synced NODE TIME` when the first lists of a node were received, and `seen NODE ADDRESS TIME` for each first endpoint of a slice with
// an address in 10.200.0.0/16. TIME is in nanoseconds since 1970. It ends with its standard input.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// The kinds that each node reads.
const kinds = 3

// The number of kinds of a node whose first list was received.
type node struct {
	number int
	synced atomic.Int32
	// One element for each node that reads its first lists.
	reading chan struct{}
}

// A store of one kind that keeps nothing.
type store struct {
	node     *node
	isSynced atomic.Bool
}

func (s *store) see(object any) error {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || len(slice.Endpoints) == 0 || len(slice.Endpoints[0].Addresses) == 0 {
		return nil
	}
	if address := slice.Endpoints[0].Addresses[0]; strings.HasPrefix(address, "10.200.") {
		fmt.Printf("seen %d %s %d\n", s.node.number, address, time.Now().UnixNano())
	}
	return nil
}

func (s *store) Add(object any) error    { return s.see(object) }
func (s *store) Update(object any) error { return s.see(object) }
func (s *store) Delete(any) error        { return nil }
func (s *store) Resync() error           { return nil }

func (s *store) Replace(objects []any, _ string) error {
	for _, object := range objects {
		s.see(object)
	}
	if !s.isSynced.Swap(true) && s.node.synced.Add(1) == kinds {
		fmt.Printf("synced %d %d\n", s.node.number, time.Now().UnixNano())
		<-s.node.reading
	}
	return nil
}

func start(config *rest.Config, number int, reading chan struct{}) error {
	config = rest.CopyConfig(config)
	// Clients with a dialer of their own share no connection.
	config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	node := &node{number: number, reading: reading}
	follow := func(getter cache.Getter, resource, labels, fields string, object runtime.Object) {
		options := func(options *metav1.ListOptions) {
			options.LabelSelector = labels
			options.FieldSelector = fields
		}
		source := cache.NewFilteredListWatchFromClient(getter, resource, "", options)
		reflector := cache.NewReflectorWithOptions(source, object, &store{node: node}, cache.ReflectorOptions{})
		go reflector.Run(make(chan struct{}))
	}
	core := client.CoreV1().RESTClient()
	noProxy := "!service.kubernetes.io/service-proxy-name"
	follow(core, "services", noProxy, "spec.clusterIP!=None", &corev1.Service{})
	follow(core, "nodes", "", fmt.Sprintf("metadata.name=node-%d", number), &corev1.Node{})
	slices := client.DiscoveryV1().RESTClient()
	follow(slices, "endpointslices", "!service.kubernetes.io/headless", "", &discoveryv1.EndpointSlice{})
	return nil
}

func number(variable string) int {
	number, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		log.Fatalf("%s: %v", variable, err)
	}
	return number
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KERNLINK_WATCH_KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	first := number("KERNLINK_WATCH_FIRST")
	reading := make(chan struct{}, number("KERNLINK_WATCH_TOGETHER"))
	fmt.Printf("begun %d\n", time.Now().UnixNano())
	for offset := range number("KERNLINK_WATCH_NUMBER") {
		reading <- struct{}{}
		if err := start(config, first+offset, reading); err != nil {
			log.Fatal(err)
		}
	}
	io.Copy(io.Discard, os.Stdin)
}
