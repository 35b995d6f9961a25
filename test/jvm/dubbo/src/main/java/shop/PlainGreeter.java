package shop;

/** PlainGreeter is called by the protocol dubbo, whose types are those of Hessian. */
public interface PlainGreeter {
    String Greet(String name);
}
