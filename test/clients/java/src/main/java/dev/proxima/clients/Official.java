package dev.proxima.clients;

import com.google.gson.reflect.TypeToken;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1Namespace;
import io.kubernetes.client.openapi.models.V1ObjectMeta;
import io.kubernetes.client.openapi.models.V1Service;
import io.kubernetes.client.openapi.models.V1ServicePort;
import io.kubernetes.client.openapi.models.V1ServiceSpec;
import io.kubernetes.client.util.Config;
import io.kubernetes.client.util.Watch;
import java.util.Map;

/** The official client of Java. */
public final class Official {
    public static void main(String[] args) throws Exception {
        ApiClient client = Config.fromConfig(args[0]);
        CoreV1Api api = new CoreV1Api(client);
        String ns = "clients-java";
        api.createNamespace(new V1Namespace().metadata(new V1ObjectMeta().name(ns))).execute();
        V1Service web = new V1Service().metadata(new V1ObjectMeta().name("web").labels(Map.of("app", "web")))
            .spec(new V1ServiceSpec().selector(Map.of("app", "web")).addPortsItem(new V1ServicePort().port(80)));
        V1Service made = api.createNamespacedService(ns, web).execute();
        Fabric8.check(made.getSpec().getClusterIP() != null, "no cluster IP");
        try (Watch<V1Service> watch = Watch.createWatch(client, api.listNamespacedService(ns).watch(true).timeoutSeconds(20).buildCall(null),
                new TypeToken<Watch.Response<V1Service>>() {}.getType())) {
            Fabric8.check("ADDED".equals(watch.next().type), "no event");
        }
        made.getMetadata().putLabelsItem("tier", "front");
        api.replaceNamespacedService("web", ns, made).execute();
        Fabric8.check(api.listNamespacedService(ns).labelSelector("tier=front").execute().getItems().size() == 1, "list by label");
        V1Service gone = api.deleteNamespacedService("web", ns).execute();
        Fabric8.check("web".equals(gone.getMetadata().getName()), "the answer to the deletion is not the service");
        api.deleteNamespace(ns).execute();
        System.out.println("done");
        System.exit(0);
    }
}
