// The official client of JavaScript: write, watch, delete.
import * as k8s from '@kubernetes/client-node';

function check(ok, what) {
  if (!ok) {
    console.error(what);
    process.exit(1);
  }
}

const config = new k8s.KubeConfig();
config.loadFromFile(process.argv[2]);
const core = config.makeApiClient(k8s.CoreV1Api);
const namespace = 'clients-javascript';
await core.createNamespace({ body: { metadata: { name: namespace } } });
const made = await core.createNamespacedService({
  namespace,
  body: { metadata: { name: 'web', labels: { app: 'web' } }, spec: { selector: { app: 'web' }, ports: [{ port: 80 }] } },
});
check(made.spec.clusterIP, 'no cluster IP');
const event = await new Promise((resolve, reject) => {
  const path = `/api/v1/namespaces/${namespace}/services`;
  new k8s.Watch(config).watch(path, { timeoutSeconds: 20 }, (type, object) => resolve({ type, object }), reject);
});
check(event.type === 'ADDED' && event.object.metadata.name === 'web', 'no event');
made.metadata.labels.tier = 'front';
await core.replaceNamespacedService({ name: 'web', namespace, body: made });
const list = await core.listNamespacedService({ namespace, labelSelector: 'tier=front' });
check(list.items.length === 1, 'list by label');
const objects = k8s.KubernetesObjectApi.makeApiClient(config);
await objects.create({
  apiVersion: 'mesh.proxima.dev/v1alpha1',
  kind: 'Dataplane',
  metadata: { name: 'web-1', namespace },
  spec: { addresses: ['192.0.2.1'] },
});
const gone = await core.deleteNamespacedService({ name: 'web', namespace });
check(gone.metadata.name === 'web', 'the answer to the deletion is not the service');
await core.deleteNamespace({ name: namespace });
console.log('done');
process.exit(0);
