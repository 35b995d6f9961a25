package dev.proxima.clients;

import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.api.model.Service;
import io.fabric8.kubernetes.api.model.ServiceBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import java.io.File;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The client of fabric8: reads the kubeconfig, and writes, watches and deletes. */
public final class Fabric8 {
    public static void main(String[] args) throws Exception {
        try (KubernetesClient client = new KubernetesClientBuilder().withConfig(Config.fromKubeconfig(new File(args[0]))).build()) {
            String ns = "clients-fabric8";
            client.namespaces().resource(new io.fabric8.kubernetes.api.model.NamespaceBuilder().withNewMetadata().withName(ns).endMetadata().build()).create();
            CountDownLatch added = new CountDownLatch(1);
            client.services().inNamespace(ns).watch(new Watcher<Service>() {
                @Override
                public void eventReceived(Action action, Service service) {
                    if (action == Action.ADDED) added.countDown();
                }

                @Override
                public void onClose(WatcherException cause) {}
            });
            Service wanted = new ServiceBuilder().withNewMetadata().withName("web").endMetadata()
                .withNewSpec().withSelector(Map.of("app", "web")).addNewPort().withPort(80).endPort().endSpec().build();
            Service made = client.services().inNamespace(ns).resource(wanted).create();
            check(made.getSpec().getClusterIP() != null, "no cluster IP");
            check(added.await(20, TimeUnit.SECONDS), "no event");
            Service changed = client.services().inNamespace(ns).withName("web").edit(s -> new ServiceBuilder(s).editMetadata().addToLabels("app", "web").endMetadata().build());
            check("web".equals(changed.getMetadata().getLabels().get("app")), "no label");
            check(client.services().inNamespace(ns).withLabel("app", "web").list().getItems().size() == 1, "list by label");
            wanted.getMetadata().setManagedFields(null);
            client.services().inNamespace(ns).resource(wanted).serverSideApply();
            GenericKubernetesResource dataplane = new GenericKubernetesResource();
            dataplane.setApiVersion("mesh.proxima.dev/v1alpha1");
            dataplane.setKind("Dataplane");
            dataplane.setMetadata(new ObjectMetaBuilder().withName("web-1").withNamespace(ns).build());
            dataplane.setAdditionalProperty("spec", Map.of("addresses", java.util.List.of("192.0.2.1")));
            client.resource(dataplane).create();
            check(client.genericKubernetesResources("mesh.proxima.dev/v1alpha1", "Dataplane").inNamespace(ns).list().getItems().size() == 1, "dataplanes");
            check(client.services().inNamespace(ns).withName("web").delete().size() == 1, "deleted");
            check(client.services().inNamespace(ns).withName("web").get() == null, "still there");
            client.namespaces().withName(ns).delete();
        }
        System.out.println("done");
    }

    static void check(boolean ok, String what) {
        if (!ok) throw new IllegalStateException(what);
    }
}
